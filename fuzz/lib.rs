//! Code that fuzz targets share.

pub mod caught;
pub mod checkpoint;
pub mod frames;
pub mod recorded;
