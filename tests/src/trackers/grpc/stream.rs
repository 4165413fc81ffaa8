//! Messages of one answer, and their quirks.

use super::{Block, Blocks, Code, GrpcQuirks, Message, Status, mpsc};
use std::time::Duration;

/// One answer on its way, with all that is wrong with it.
pub(super) struct Stream {
    pub(super) from: u64,
    pub(super) volume_bytes: u64,
    pub(super) blocks: Blocks,
    pub(super) first: bool,
    pub(super) fail: Option<(u64, Code)>,
    pub(super) cut: Option<u64>,
    pub(super) silent: Option<u64>,
    pub(super) per_message: usize,
    pub(super) quirks: GrpcQuirks,
}

impl Stream {
    pub(super) async fn send<T: From<Message>>(self, sender: mpsc::Sender<Result<T, Status>>) {
        let mut sent = 0;
        let end = self.blocks.count();
        let mut next = self.from;
        while next < end {
            let stop =
                [self.fail.map(|(at, _)| at), self.cut, self.silent, self.quirks.empty_after];
            let left = stop.into_iter().flatten().min().unwrap_or(u64::MAX).saturating_sub(sent);
            let count = (self.per_message as u64).min(end - next).min(left);
            if count == 0 {
                break;
            }
            if self.quirks.empty_messages {
                let empty = self.message(sent, Vec::new());
                if sender.send(Ok(empty.into())).await.is_err() {
                    return;
                }
            }
            if self.quirks.pace_ms > 0 {
                tokio::time::sleep(Duration::from_millis(self.quirks.pace_ms)).await;
            }
            let blocks = (next..next + count).flat_map(|n| self.ranges(n, sent + n - next, end));
            let message = self.message(sent, blocks.collect());
            if sender.send(Ok(message.into())).await.is_err() {
                return;
            }
            next += count;
            sent += count;
        }
        while self.quirks.empty_after.is_some_and(|at| sent >= at) {
            tokio::time::sleep(Duration::from_millis(5)).await;
            if sender.send(Ok(self.message(sent, Vec::new()).into())).await.is_err() {
                return;
            }
        }
        if self.silent.is_some_and(|at| sent >= at) && next < end {
            // until the client goes away
            sender.closed().await;
        } else if let Some((at, code)) = self.fail
            && sent >= at
        {
            let _ = sender.send(Err(Status::new(code, "as was asked for"))).await;
        }
    }

    /// Range `n` of the list, the `nth` of this call, as it is sent.
    fn ranges(&self, n: u64, nth: u64, end: u64) -> Vec<(i64, i64)> {
        let quirks = &self.quirks;
        let n = match quirks.swapped_at {
            Some(at) if at == nth => (n + 1).min(end - 1),
            Some(at) if at + 1 == nth => n - 1,
            _ => n,
        };
        let Block { offset, len, .. } = self.blocks.at(n);
        let [mut offset, mut len] = [offset, len].map(|n| i64::try_from(n).expect("it fits"));
        if let Some((at, size)) = quirks.size_at
            && at == nth
        {
            len = size;
        }
        if let Some((at, other)) = quirks.offset_at
            && at == nth
        {
            offset = other;
        }
        let times = if quirks.twice_at == Some(nth) { 2 } else { 1 };
        vec![(offset, len); times]
    }

    fn message(&self, sent: u64, blocks: Vec<(i64, i64)>) -> Message {
        let quirks = &self.quirks;
        let capacity = i64::try_from(self.volume_bytes).expect("it fits");
        let later = quirks.capacity_later.filter(|_| !self.first);
        let after = |quirk: Option<(u64, i64)>| quirk.filter(|(at, _)| sent >= *at).map(|q| q.1);
        let own = i32::from(!quirks.fixed) + 1;
        Message {
            block_type: quirks.type_after.filter(|q| sent >= q.0).map_or(own, |q| q.1),
            capacity: after(quirks.capacity_after).or(later).unwrap_or(capacity),
            blocks,
        }
    }
}
