//! Host values that a forward reads, counts and changes: same results as in the plain loop, captured or not.

mod counted;
mod gradients;
mod model;
mod noise;
mod programs;
mod reads;
mod shared_recordings;
mod values;
