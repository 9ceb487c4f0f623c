//! Any notes by which ranks over NCCL take turns, between messages of this rank and of others. Only sent messages are
//! launched, and a note that no rank sends ends the link.
#![no_main]
#![cfg(fuzzing)]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| burn_pipeline_nccl::fuzzing::take_turns(script));
