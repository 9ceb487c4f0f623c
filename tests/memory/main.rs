//! Memory is given back: bytes alive on the heap, measured, in a binary of its own.

mod heap;
mod held;
mod release;
