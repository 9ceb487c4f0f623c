//! What a forward reads from the host, counts and changes there: as in the plain loop, captured or not.

mod counted;
mod gradients;
mod model;
mod noise;
mod programs;
mod reads;
mod values;
