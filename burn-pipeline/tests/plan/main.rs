//! Plans held against PyTorch, papers and properties; see each module.
