//! Client of the mock provider.
