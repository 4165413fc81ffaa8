//! What a manifest says of a map, and the arithmetic of its pages.

use crate::error::{Error, ErrorKind, Result};
use crate::format::attachment::Attachment;
use crate::format::manifest::{Manifest, MapRoot};
use crate::repository::Repository;
use crate::units::{Geometry, map_depth, page_span};
use std::ops::Range;
use std::sync::Arc;

/// Root, size and shape of one volume's map. Cheap to clone.
#[derive(Debug, Clone)]
pub struct VolumeMap {
    root: MapRoot,
    geometry: Geometry,
    fanout: u16,
    /// For messages.
    name: Arc<str>,
}

impl VolumeMap {
    /// The map of a backup. A depth that does not fit the volume's size is refused.
    pub fn of(repo: &Repository, manifest: &Manifest) -> Result<Self> {
        let params = repo.params();
        let name = format!("backup {} of volume {}", manifest.backup_id, manifest.volume);
        let geometry = Geometry::new(manifest.size_bytes, params.chunk).map_err(|e| {
            Error::new(ErrorKind::Corrupt, format!("read the map of {name}"), e.to_string())
        })?;
        Self::new(manifest.map, geometry, params.page_fanout, &name)
    }

    /// The map of an attachment of a backup; `None` if it has no bytes. A depth that does not fit its
    /// size is refused.
    pub fn of_attachment(
        repo: &Repository,
        manifest: &Manifest,
        attachment: &Attachment,
    ) -> Result<Option<Self>> {
        if attachment.size_bytes == 0 {
            return Ok(None);
        }
        let params = repo.params();
        let Manifest { backup_id, volume, .. } = manifest;
        let name =
            format!("attachment {} of backup {backup_id} of volume {volume}", attachment.name);
        let geometry = Geometry::new(attachment.size_bytes, params.chunk).map_err(|e| {
            Error::new(ErrorKind::Corrupt, format!("read the map of {name}"), e.to_string())
        })?;
        Self::new(attachment.map, geometry, params.page_fanout, &name).map(Some)
    }

    /// All maps of a backup: that of its volume, then those of its attachments. Whoever asks what a
    /// backup refers to has to follow all of them.
    pub fn all_of(repo: &Repository, manifest: &Manifest) -> Result<Vec<Self>> {
        let mut maps = vec![Self::of(repo, manifest)?];
        for attachment in &manifest.attachments {
            maps.extend(Self::of_attachment(repo, manifest, attachment)?);
        }
        Ok(maps)
    }

    /// From its parts; `name` is what messages call it. A depth that does not fit the size is
    /// refused.
    pub fn new(root: MapRoot, geometry: Geometry, fanout: u16, name: &str) -> Result<Self> {
        let fits = map_depth(fanout, geometry.chunks());
        if root.depth != fits {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("read the map of {name}"),
                format!(
                    "its depth is {}, a volume of {} bytes has {fits}",
                    root.depth,
                    geometry.size_bytes()
                ),
            ));
        }
        Ok(Self { root, geometry, fanout, name: name.into() })
    }

    /// Depth and reference of the root page.
    pub fn root(&self) -> &MapRoot {
        &self.root
    }

    /// Size of the volume and of its chunks.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Children of a full page.
    pub fn fanout(&self) -> u16 {
        self.fanout
    }

    /// What messages call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Chunks that a page covers, up to the volume's end.
    pub(crate) fn page_chunks(&self, level: u8, page: u64) -> Range<u64> {
        let span = page_span(self.fanout, level);
        let end = self.geometry.chunks();
        let start = page.saturating_mul(span);
        start.min(end)..start.saturating_add(span).min(end)
    }

    /// Bytes of the volume that lie below a page.
    pub(crate) fn page_bytes(&self, level: u8, page: u64) -> u64 {
        let chunks = self.page_chunks(level, page);
        let to_bytes = |chunk: u64| {
            let bytes = chunk.saturating_mul(u64::from(self.geometry.chunk().bytes()));
            bytes.min(self.geometry.size_bytes())
        };
        to_bytes(chunks.end) - to_bytes(chunks.start)
    }

    /// Most children that a page may list.
    pub(crate) fn children_max(&self, level: u8, page: u64) -> u64 {
        let chunks = self.page_chunks(level, page);
        (chunks.end - chunks.start).div_ceil(child_span(self.fanout, level))
    }

    /// A page, for messages.
    pub(crate) fn place(&self, level: u8, page: u64) -> String {
        let chunks = self.page_chunks(level, page);
        format!(
            "page {page} of level {level} (chunks {}..{}) of the map of {}",
            chunks.start, chunks.end, self.name
        )
    }
}

/// Chunks that one child of a page of `level` covers.
pub(crate) fn child_span(fanout: u16, level: u8) -> u64 {
    if level == 0 { 1 } else { page_span(fanout, level - 1) }
}

/// Sorts ranges, merges those that touch, drops empty ones and what lies behind `end`.
pub(crate) fn normalise(ranges: impl IntoIterator<Item = Range<u64>>, end: u64) -> Vec<Range<u64>> {
    let mut sorted: Vec<_> = ranges.into_iter().map(|r| r.start..r.end.min(end)).collect();
    sorted.retain(|r| r.start < r.end);
    sorted.sort_unstable_by_key(|r| (r.start, r.end));
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::ChunkSize;

    fn map(size_bytes: u64, depth: u8) -> Result<VolumeMap> {
        let geometry = Geometry::new(size_bytes, ChunkSize::new(4096).unwrap()).unwrap();
        VolumeMap::new(MapRoot { depth, root: None }, geometry, 16, "a test")
    }

    #[test]
    fn a_depth_that_does_not_fit_is_refused() {
        assert!(map(16 * 4096, 1).is_ok());
        assert!(map(16 * 4096 + 1, 2).is_ok());
        for (size, depth) in [(16 * 4096, 2), (16 * 4096 + 1, 1), (1, 0), (1 << 56, 13), (1, 255)] {
            let error = map(size, depth).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        }
        assert!(map(1 << 56, 11).is_ok());
    }

    #[test]
    fn pages_end_with_the_volume() {
        let map = map(300 * 4096 - 5, 3).unwrap();
        assert_eq!(map.page_chunks(0, 18), 288..300);
        assert_eq!(map.children_max(0, 18), 12);
        assert_eq!(map.page_chunks(1, 1), 256..300);
        assert_eq!(map.children_max(1, 1), 3);
        assert_eq!(map.page_chunks(2, 0), 0..300);
        assert_eq!(map.children_max(2, 0), 2);
        assert_eq!(map.page_chunks(0, u64::MAX), 300..300);
        assert_eq!(map.children_max(0, 19), 0);
        assert_eq!(map.page_bytes(0, 17), 16 * 4096);
        assert_eq!(map.page_bytes(0, 18), 12 * 4096 - 5);
        assert_eq!(map.page_bytes(2, 0), 300 * 4096 - 5);
        assert_eq!(map.page_bytes(0, u64::MAX), 0);
    }

    #[test]
    fn ranges_are_sorted_merged_and_cut() {
        let cut = normalise([9..12, 0..2, 5..5, 2..3, 1..2, 20..30], 11);
        assert_eq!(cut, [0..3, 9..11]);
    }
}
