//! SnapshotMetadata: the blocks in use of a snapshot, and those that changed between two.

use crate::driver::{Call, Service, required};
use crate::extents::{self, Extent, Range};
use crate::faults::Bent;
use crate::proto::csi::snapshot_metadata_server::SnapshotMetadata;
use crate::proto::csi::{
    BlockMetadata, BlockMetadataType, GetMetadataAllocatedRequest, GetMetadataAllocatedResponse,
    GetMetadataDeltaRequest, GetMetadataDeltaResponse,
};
use crate::sizes::signed;
use crate::system::Context;
use std::fs::File;
use tonic::{Request, Response, Status};

/// Ranges of one message if the caller does not care.
const RESULTS_DEFAULT: usize = 256;

/// A list as it is sent: its messages, and the error that it may end with.
#[derive(Debug)]
struct List {
    messages: Vec<Vec<BlockMetadata>>,
    capacity: i64,
    error: Option<Status>,
}

type Messages<T> = tokio_stream::Iter<std::vec::IntoIter<Result<T, Status>>>;

impl Call<'_> {
    fn extents(&self, snapshot: &str) -> Result<Vec<Extent>, Status> {
        let data = self.store.snapshots.data(snapshot);
        let read = || format!("read the extents of {}", data.display());
        extents::of_file(&File::open(&data).context(read)?).context(read)
    }

    fn allocated_ranges(&self, snapshot: &str) -> Result<(Vec<Range>, u64), Status> {
        let size = self.store.snapshot(required(snapshot, "snapshot_id")?)?.bytes;
        Ok((extents::allocated(&self.extents(snapshot)?, size), size))
    }

    fn changed_ranges(&self, base: &str, target: &str) -> Result<(Vec<Range>, u64), Status> {
        let old = self.store.snapshot(required(base, "base_snapshot_id")?)?;
        let new = self.store.snapshot(required(target, "target_snapshot_id")?)?;
        if old.volume != new.volume {
            return Err(Status::invalid_argument(format!(
                "{base} is of volume {}, {target} of {}: name two snapshots of one volume",
                old.volume, new.volume
            )));
        }
        if old.bytes > new.bytes {
            return Err(Status::invalid_argument(format!(
                "{base} is larger than {target}: name the older snapshot as the base"
            )));
        }
        Ok((extents::delta(&self.extents(base)?, &self.extents(target)?, new.bytes), new.bytes))
    }

    /// The list from `start` on, bent if a fault says so, in messages of at most `max` ranges.
    fn list(
        &self,
        (ranges, size): (Vec<Range>, u64),
        start: i64,
        max: i32,
        request: &str,
    ) -> Result<List, Status> {
        let Ok(start) = u64::try_from(start) else {
            return Err(Status::invalid_argument(format!("starting_offset is negative: {start}")));
        };
        if start >= size {
            return Err(Status::out_of_range(format!(
                "starting_offset {start} is not within the snapshot of {size} bytes"
            )));
        }
        let max = usize::try_from(max)
            .map_err(|_| Status::invalid_argument(format!("max_results is negative: {max}")))?;
        let max = if max == 0 { RESULTS_DEFAULT } else { max };
        let Bent { ranges, size, error } = match self.faults.tracker(request) {
            Some(tracker) => tracker.bend(ranges, size),
            None => Bent { ranges, size, error: None },
        };
        let block = |range: &Range| BlockMetadata {
            byte_offset: signed(range.start),
            size_bytes: signed(range.bytes),
        };
        let ranges = extents::from_offset(ranges, start);
        let messages = ranges.chunks(max).map(|part| part.iter().map(block).collect()).collect();
        Ok(List { messages, capacity: signed(size), error })
    }
}

impl List {
    /// The stream of it; a list without ranges ends without a message.
    fn stream<T>(self, message: impl Fn(i32, i64, Vec<BlockMetadata>) -> T) -> Messages<T> {
        let kind = BlockMetadataType::VariableLength.into();
        let capacity = self.capacity;
        let parts = self.messages.into_iter().map(|part| Ok(message(kind, capacity, part)));
        let all: Vec<_> = parts.chain(self.error.map(Err)).collect();
        tokio_stream::iter(all)
    }
}

#[tonic::async_trait]
impl SnapshotMetadata for Service {
    type GetMetadataAllocatedStream = Messages<GetMetadataAllocatedResponse>;
    type GetMetadataDeltaStream = Messages<GetMetadataDeltaResponse>;

    async fn get_metadata_allocated(
        &self,
        request: Request<GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        self.serve("GetMetadataAllocated", request, |call, request| {
            let text = format!("{request:?}");
            let ranges = call.allocated_ranges(&request.snapshot_id)?;
            let list = call.list(ranges, request.starting_offset, request.max_results, &text)?;
            Ok(list.stream(|block_metadata_type, volume_capacity_bytes, block_metadata| {
                GetMetadataAllocatedResponse {
                    block_metadata_type,
                    volume_capacity_bytes,
                    block_metadata,
                }
            }))
        })
        .await
    }

    async fn get_metadata_delta(
        &self,
        request: Request<GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        self.serve("GetMetadataDelta", request, |call, request| {
            let text = format!("{request:?}");
            let (base, target) = (&request.base_snapshot_id, &request.target_snapshot_id);
            let ranges = call.changed_ranges(base, target)?;
            let list = call.list(ranges, request.starting_offset, request.max_results, &text)?;
            Ok(list.stream(|block_metadata_type, volume_capacity_bytes, block_metadata| {
                GetMetadataDeltaResponse {
                    block_metadata_type,
                    volume_capacity_bytes,
                    block_metadata,
                }
            }))
        })
        .await
    }
}
