//! Sizes of volumes: what a caller asks for, made a size that the store can have. Pure.

use crate::proto::csi::CapacityRange;
use tonic::Status;

const MIB: u64 = 1 << 20;

/// Sizes are multiples of this: a filesystem's block and any sector divide it.
pub(crate) const GRAIN_BYTES: u64 = MIB;

/// What a volume has if its caller does not care.
const DEFAULT_BYTES: u64 = 1024 * MIB;

/// The size of a volume that has at least `least` bytes, because it starts as a copy or has them
/// already, as a multiple of `grain` bytes within `range`.
pub(crate) fn plan_size(
    range: Option<&CapacityRange>,
    least: u64,
    grain: u64,
) -> Result<u64, Status> {
    let range = range.copied().unwrap_or_default();
    let required = bound(range.required_bytes, "required_bytes")?;
    let limit = bound(range.limit_bytes, "limit_bytes")?;
    if limit != 0 && limit < required {
        return Err(Status::invalid_argument(format!(
            "limit_bytes {limit} is less than required_bytes {required}: raise the limit"
        )));
    }
    let wanted = match (required, limit) {
        (0, 0) if least == 0 => DEFAULT_BYTES,
        (0, limit) if least == 0 => DEFAULT_BYTES.min(limit / grain * grain).max(1),
        (required, _) => required,
    };
    let bytes = wanted.max(least).checked_next_multiple_of(grain);
    let bytes = bytes.filter(|bytes| i64::try_from(*bytes).is_ok());
    let bytes = bytes.ok_or_else(|| {
        Status::out_of_range(format!("required_bytes {required} is more than a volume can have"))
    })?;
    if limit != 0 && bytes > limit {
        return Err(Status::out_of_range(format!(
            "the volume would have {bytes} bytes (at least {least}, in steps of {grain}), more \
             than limit_bytes {limit}: raise the limit"
        )));
    }
    Ok(bytes)
}

/// Whether a volume of `bytes` is what `range` asks for.
pub(crate) fn fits(range: Option<&CapacityRange>, bytes: u64) -> Result<bool, Status> {
    let range = range.copied().unwrap_or_default();
    let required = bound(range.required_bytes, "required_bytes")?;
    let limit = bound(range.limit_bytes, "limit_bytes")?;
    Ok(bytes >= required && (limit == 0 || bytes <= limit))
}

/// A size as the protocol has it.
pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn bound(bytes: i64, name: &str) -> Result<u64, Status> {
    u64::try_from(bytes)
        .map_err(|_| Status::invalid_argument(format!("{name} is negative: {bytes}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tonic::Code;

    fn range(required_bytes: i64, limit_bytes: i64) -> CapacityRange {
        CapacityRange { required_bytes, limit_bytes }
    }

    #[test]
    fn a_size_is_rounded_up_to_the_grain() {
        assert_eq!(plan_size(None, 0, MIB).unwrap(), DEFAULT_BYTES);
        assert_eq!(plan_size(Some(&range(1, 0)), 0, MIB).unwrap(), MIB);
        assert_eq!(plan_size(Some(&range(0, 0)), 5 * MIB, MIB).unwrap(), 5 * MIB);
        assert_eq!(plan_size(Some(&range(0, 3_000_000)), 0, MIB).unwrap(), 2 * MIB);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let code = |range: CapacityRange, least| {
            plan_size(Some(&range), least, MIB).expect_err("a refusal").code()
        };
        assert_eq!(code(range(-1, 0), 0), Code::InvalidArgument);
        assert_eq!(code(range(2, 1), 0), Code::InvalidArgument);
        assert_eq!(code(range(1, 2), 0), Code::OutOfRange);
        assert_eq!(code(range(0, 1 << 20), 2 << 20), Code::OutOfRange);
        assert_eq!(code(range(i64::MAX, 0), 0), Code::OutOfRange);
    }

    proptest! {
        #[test]
        fn a_planned_size_is_within_its_bounds(
            required in 0..1_i64 << 50,
            more in 0..1_i64 << 40,
            least in 0..1_u64 << 50,
        ) {
            let range = range(required, required + more);
            if let Ok(bytes) = plan_size(Some(&range), least, MIB) {
                prop_assert!(bytes > 0 && bytes % MIB == 0 && bytes >= least);
                prop_assert!(fits(Some(&range), bytes).unwrap());
            }
        }
    }
}
