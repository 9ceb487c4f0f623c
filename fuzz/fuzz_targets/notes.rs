//! Any notes by which ranks over NCCL agree on the order of transfers, between offers of this rank and of others.
//! Only offered transfers are launched, and a note that no rank sends ends the link.
//! was offered, and a note that no rank sends ends the link.
#![no_main]
#![cfg(fuzzing)]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| burn_pipeline_nccl::fuzzing::agree(script));
