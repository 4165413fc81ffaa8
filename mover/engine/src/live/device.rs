//! A target that is a device or a file: the one that a restore opens, with its checks.

use super::parts::CowTarget;
use crate::volume::device::Target;
use bytes::Bytes;
use chunkstore::ErrorKind;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// The device or file of a copy-on-write volume.
#[derive(Debug, Clone)]
pub struct DeviceTarget(Arc<Target>);

impl DeviceTarget {
    /// The target must be as large as the volume.
    pub fn new(target: Arc<Target>) -> Self {
        Self(target)
    }

    /// What it writes to.
    pub fn opened(&self) -> &Arc<Target> {
        &self.0
    }

    /// A call on a thread that may wait for the device. It ends also if nobody waits for it.
    async fn blocking<R: Send + 'static>(
        &self,
        act: impl FnOnce(&Target) -> io::Result<R> + Send + 'static,
    ) -> io::Result<R> {
        let target = Arc::clone(&self.0);
        let task = tokio::task::spawn_blocking(move || act(&target));
        task.await.unwrap_or_else(|e| Err(io::Error::other(e)))
    }
}

impl CowTarget for DeviceTarget {
    fn align(&self) -> u64 {
        u64::from(self.0.io_file().align()).max(u64::from(self.0.logical_block_bytes()))
    }

    fn can_trim(&self) -> bool {
        self.0.can_deallocate()
    }

    async fn read(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        self.blocking(move |target| {
            let len = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
            let mut bytes = vec![0; len];
            target.io_file().read_exact_at(&mut bytes, range.start)?;
            Ok(bytes)
        })
        .await
    }

    async fn write(&self, offset: u64, data: Bytes) -> io::Result<()> {
        self.blocking(move |target| target.io_file().write_all_at(&data, offset)).await
    }

    async fn zero(&self, range: Range<u64>, hole: bool) -> io::Result<()> {
        self.blocking(move |target| {
            let zeroed = match hole {
                true => target.deallocate_or_zero(range),
                false => target.zero_in_place(range),
            };
            zeroed.map(|_| ()).map_err(|e| {
                let kind = match e.kind() {
                    ErrorKind::NoSpace => io::ErrorKind::StorageFull,
                    _ => io::ErrorKind::Other,
                };
                io::Error::new(kind, e.to_string())
            })
        })
        .await
    }

    async fn sync(&self) -> io::Result<()> {
        self.blocking(|target| target.io_file().sync()).await
    }
}
