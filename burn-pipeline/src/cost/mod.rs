//! Costs: how long each action takes, how many bytes it holds, and what it takes to cross from rank to rank.
//!
//! A [`Profile`] is plain data. The runtime measures one and writes it, a person may write one by hand, and
//! [`Profile::uniform`] makes the idealised one that papers reason with. The simulator reads it through
//! [`Costs`], which binds it to a placement and refuses one that does not fit.

mod bind;
mod error;
mod json;
mod link;
mod profile;
mod uniform;

pub use bind::Costs;
pub use error::ProfileError;
pub use link::{Link, LinkBetween, Links};
pub use profile::{Profile, StageCost};
pub use uniform::Uniform;
