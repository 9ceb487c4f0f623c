//! Mixture-of-experts models on top of `burn-pipeline`.
