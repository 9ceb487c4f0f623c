//! The conformance suite over threads; `tests/mpi` runs it over processes.

use burn::tensor::Device;
use burn_pipeline::link::{Link, Threads};
use pipeline_tests::conformance::CASES;

#[test]
fn threads_are_a_link() {
    for ranks in [2, 3, 5] {
        for (name, case) in CASES {
            println!("{ranks} ranks: {name}");
            let threads = Threads::new(ranks);
            std::thread::scope(|scope| {
                for rank in 0..ranks {
                    let mut link = threads.link(rank, Device::flex());
                    scope.spawn(move || case(&mut link as &mut dyn Link));
                }
            });
        }
    }
}
