//! Code that the runtime's tests share: small models, and the plain loop that a pipeline must equal.

pub mod at_once;
pub mod connections;
pub mod device;
pub mod drawn;
pub mod faulty_link;
pub mod layers;
pub mod leaving;
pub mod machines;
pub mod mlp;
pub mod noise;
pub mod noisy;
pub mod on_device;
pub mod product;
pub mod random;
pub mod reference;
pub mod unet;
