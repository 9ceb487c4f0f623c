//! The conformance suite over MPI, and what is MPI's own.

use crate::PATIENCE;
use burn::tensor::{Device, Tensor};
use burn_pipeline::link::{Direction, Header, Link, Message, Mpi, MpiError};
use burn_pipeline::plan::Stage;
use burn_pipeline::stage::Boundary;
use pipeline_tests::conformance::CASES;
use std::time::Instant;

/// Every case, each on a link of its own.
pub(crate) fn all(mpi: &Mpi) {
    for (name, case) in CASES {
        let mut link = mpi.link(Device::flex()).unwrap();
        case(&mut link);
        if mpi.rank() == 0 {
            println!("passed: {name}");
        }
    }
}

/// Even and odd ranks get links of their own, beside one over all: nothing gets from one to another.
pub(crate) fn groups(mpi: &Mpi) {
    let (me, deadline) = (mpi.rank(), Instant::now() + PATIENCE);
    let mut world = mpi.link(Device::flex()).unwrap();
    let mut group = mpi.link_among((me % 2) as u32, Device::flex()).unwrap();
    assert_eq!((group.rank(), group.ranks()), (me / 2, (mpi.ranks() + 1 - me % 2) / 2));
    let header = Header { stage: Stage::new(0), microbatch: 0, direction: Direction::Forward };
    let message =
        |value: f32| Message { header, payload: Tensor::<1>::from_floats([value], &Device::flex()).into_payload() };
    // Each sends to the next one around, on both links; received in the other order.
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
    // A failure of one group is none of the other's, nor of the link over all.
    if me == 0 {
        group.abort("only the even ones".to_owned());
    }
    let gathered = group.all_gather(vec![me as f64], deadline);
    assert_eq!(gathered.is_err(), parity == 0, "{gathered:?}");
    let gathered = world.all_gather(vec![me as f64], deadline).unwrap();
    assert_eq!(gathered.len(), mpi.ranks());
}

/// MPI can be initialised once.
pub(crate) fn once_only() {
    assert_eq!(Mpi::connect(PATIENCE).unwrap_err(), MpiError::Again);
}
