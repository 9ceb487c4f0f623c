//! The conformance suite over MPI, and tests of MPI alone.

use crate::TIMEOUT;
use burn::tensor::{Device, Float, Tensor};
use burn_pipeline::link::conformance::CASES;
use burn_pipeline::link::{Header, Link, LinkError, Message, MessageKind};
use burn_pipeline::plan::StageId;
use burn_pipeline::stage::{AnyTensor, Boundary};
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

/// Messages of groups and of the plan are kept apart, and groups that differ are refused.
pub(crate) fn formed(mpi: &Mpi) {
    let (me, last, deadline) = (mpi.rank(), mpi.ranks() - 1, Instant::now() + TIMEOUT);
    let mut link = mpi.link(Device::flex()).unwrap();
    let mine = if me == last { vec![vec![0]] } else { vec![vec![0, last]] };
    let error = link.form_groups(&mine, deadline).unwrap_err();
    let peer = if me == last { 0 } else { last };
    assert_eq!(error, LinkError::Groups { rank: me, peer });
    let all: Vec<usize> = (0..=last).collect();
    link.form_groups(&[all.clone(), vec![0, last]], deadline).unwrap();
    let number = |value: usize| Tensor::<1>::from_floats([value as f32], &Device::flex());
    let header = |microbatch| Header { stage: StageId::new(0), microbatch, kind: MessageKind::Activation };
    // Sent before the sum and received after it, and the other way round in the second group.
    let next = (me + 1) % mpi.ranks();
    let before = (me + last) % mpi.ranks();
    link.send(next, Message { header: header(0), payload: number(me).into_payload() }, deadline).unwrap();
    let sums = link.all_reduce(0, &all, vec![Some(AnyTensor::new(number(me)))], deadline).unwrap();
    if [0, last].contains(&me) {
        let header = header(7);
        link.send_in(1, last - me, Message { header, payload: number(me).into_payload() }, deadline).unwrap();
        link.send(last - me, Message { header, payload: number(me).into_payload() }, deadline).unwrap();
    }
    let read = |payload| Tensor::<1>::from_payload(payload).unwrap().into_scalar::<f32>();
    assert_eq!(read(link.receive(before, header(0), deadline).unwrap()), before as f32);
    if [0, last].contains(&me) {
        assert_eq!(read(link.receive(last - me, header(7), deadline).unwrap()), (last - me) as f32);
        assert_eq!(read(link.receive_in(1, last - me, header(7), deadline).unwrap()), (last - me) as f32);
    } else {
        let refused = LinkError::NoSuchGroup { rank: me, group: 1, other: 0 };
        assert_eq!(link.receive_in(1, 0, header(7), deadline).unwrap_err(), refused);
    }
    let sum = sums[0].clone().unwrap().into_tensor::<1, Float>().unwrap().into_scalar::<f32>();
    assert_eq!(sum, (last * (last + 1) / 2) as f32);
    // A rank that fails ends waits within groups as well.
    let ended = if me == 0 {
        link.abort("rank 0 has had enough".to_owned());
        return;
    } else if me == last {
        link.receive_in(1, 0, header(8), deadline).map(drop)
    } else {
        link.receive_in(0, 0, header(8), deadline).map(drop)
    };
    assert!(matches!(&ended, Err(LinkError::Peer(failure)) if failure.rank == 0), "{ended:?}");
}

/// MPI can be initialised only once.
pub(crate) fn once_only() {
    assert_eq!(Mpi::connect(TIMEOUT).unwrap_err(), MpiError::AlreadyInitialised);
}
