//! What tests, benchmarks and fuzz targets are made of. Behind the feature `testkit`, which only
//! they enable: the product has none of this.

mod hooked;

pub use hooked::{Answer, Hook, HookedStore, Request, Verb};
