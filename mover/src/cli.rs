//! The command line.
#![allow(dead_code)]
mod args;
mod context;
mod exit;
mod keys;
mod log;
mod output;
mod progress;
mod settings;
mod signals;
mod sizes;
mod table;
