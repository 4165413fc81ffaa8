//! The volume against a plain model: see `model`.

mod faults;
mod model;
mod named;
mod oracle;
mod sim;
