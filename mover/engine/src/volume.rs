//! One volume's bytes: devices and images, and the engines that read and write them. Knows no
//! repository.

pub mod device;
pub mod io;
pub(crate) mod nameless;
pub mod sample;
