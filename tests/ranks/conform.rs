//! The conformance suite over MPI, and tests of MPI alone.

use crate::TIMEOUT;
use burn::tensor::{Device, Tensor};
use burn_pipeline::link::conformance::CASES;
use burn_pipeline::link::{Header, Link, LinkError, Message, MessageKind};
use burn_pipeline::payload::Boundary;
use burn_pipeline::plan::StageId;
use burn_pipeline_mpi::{Mpi, MpiError};
use std::time::Instant;

/// Runs every case, each on a new link.
pub(crate) fn all(mpi: &Mpi) {
    for (name, case) in CASES {
        let mut link = mpi.link(Device::flex()).unwrap();
        case(&mut link);
        if mpi.rank() == 0 {
            println!("passed: {name}");
        }
    }
}

/// Even and odd ranks get separate links beside one over all ranks: no message passes from one link to another.
pub(crate) fn groups(mpi: &Mpi) {
    let (me, deadline) = (mpi.rank(), Instant::now() + TIMEOUT);
    let mut world = mpi.link(Device::flex()).unwrap();
    let mut group = mpi.link_among((me % 2) as u32, Device::flex()).unwrap();
    assert_eq!((group.rank(), group.ranks()), (me / 2, (mpi.ranks() + 1 - me % 2) / 2));
    let header = Header { stage: StageId::new(0), microbatch: 0, kind: MessageKind::Activation };
    let message =
        |value: f32| Message { header, payload: Tensor::<1>::from_floats([value], &Device::flex()).into_payload() };
    // Each rank sends to the next one on both links, and receives in the other order.
    let (next_world, next_group) = ((me + 1) % world.ranks(), (group.rank() + 1) % group.ranks());
    world.send(next_world, message(me as f32), deadline).unwrap();
    group.send(next_group, message(100.0 + me as f32), deadline).unwrap();
    let read = |link: &mut dyn Link| {
        let before = (link.rank() + link.ranks() - 1) % link.ranks();
        let payload = link.receive(before, header, deadline).unwrap();
        Tensor::<1>::from_payload(payload).unwrap().into_scalar::<f32>()
    };
    let parity = me % 2;
    let before_in_group = ((group.rank() + group.ranks() - 1) % group.ranks()) * 2 + parity;
    assert_eq!(read(&mut group), 100.0 + before_in_group as f32);
    assert_eq!(read(&mut world), ((me + mpi.ranks() - 1) % mpi.ranks()) as f32);
    // All have read before one of them fails.
    world.all_gather(vec![me as u8], deadline).unwrap();
    // A failure of one group affects neither the other group nor the link over all ranks.
    if me == 0 {
        group.abort("only the even ones".to_owned());
    }
    let gathered = group.all_gather(vec![me as u8], deadline);
    assert_eq!(gathered.is_err(), parity == 0, "{gathered:?}");
    let gathered = world.all_gather(vec![me as u8], deadline).unwrap();
    assert_eq!(gathered.len(), mpi.ranks());
}

/// After a failed call the link goes on. Messages that nobody received are dropped, though each is larger than what
/// MPI sends without its receiver; later ones arrive.
pub(crate) fn recovers(mpi: &Mpi) {
    let (me, ranks) = (mpi.rank(), mpi.ranks());
    let (next, before) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
    let mut link = mpi.link(Device::flex()).unwrap();
    let message = |microbatch, length: usize, value: usize| Message {
        header: Header { stage: StageId::new(0), microbatch, kind: MessageKind::Activation },
        payload: Tensor::<1>::full([length], value as f32, &Device::flex()).into_payload(),
    };
    for round in 0..8 {
        let deadline = Instant::now() + TIMEOUT;
        let others = (0..ranks).filter(|&to| to != me);
        let sent = others.clone().try_for_each(|to| link.send(to, message(99, 1 << 20, 1000), deadline));
        let failed = sent.and_then(|()| {
            if me == round % ranks {
                link.interrupt("a broken stage".to_owned());
            }
            link.receive(next, message(98, 0, 0).header, deadline).map(drop)
        });
        // A rank may see the messages of another one before it is interrupted.
        let failed = failed.unwrap_err();
        assert!(matches!(failed, LinkError::Interrupted(_) | LinkError::Order { .. }), "{failed}");
        link.recover(deadline).unwrap();
        for length in [3, 1 << 20] {
            link.send(next, message(round, length, me + round), deadline).unwrap();
            let payload = link.receive(before, message(round, 0, 0).header, deadline).unwrap();
            let expected = Tensor::<1>::full([length], (before + round) as f32, &Device::flex());
            assert_eq!(Tensor::<1>::from_payload(payload).unwrap().into_data(), expected.into_data());
        }
        // One of them fails in the next round while others may still wait here.
        link.barrier(deadline).unwrap();
    }
}

/// MPI can be initialised only once.
pub(crate) fn once_only() {
    assert_eq!(Mpi::connect(TIMEOUT).unwrap_err(), MpiError::AlreadyInitialised);
}
