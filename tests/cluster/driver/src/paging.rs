//! Lists in pages. Pure.

use tonic::Status;

/// The entries of one page, and the token of the next one, which is empty after the last.
pub(crate) fn page<T>(
    all: Vec<T>,
    token: &str,
    max_entries: i32,
) -> Result<(Vec<T>, String), Status> {
    let max = usize::try_from(max_entries)
        .map_err(|_| Status::invalid_argument(format!("max_entries is negative: {max_entries}")))?;
    let start = if token.is_empty() { Some(0) } else { token.parse().ok() };
    let start: usize = start.filter(|start| *start <= all.len()).ok_or_else(|| {
        Status::aborted(format!("starting_token {token} is none of this list: begin anew"))
    })?;
    let max = if max == 0 { all.len() } else { max };
    let end = start.saturating_add(max).min(all.len());
    let next = if end < all.len() { end.to_string() } else { String::new() };
    Ok((all.into_iter().take(end).skip(start).collect(), next))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn pages_follow_each_other_to_the_end() {
        let all = vec![1, 2, 3, 4, 5];
        assert_eq!(page(all.clone(), "", 0).unwrap(), (all.clone(), String::new()));
        assert_eq!(page(all.clone(), "", 2).unwrap(), (vec![1, 2], "2".to_owned()));
        assert_eq!(page(all.clone(), "2", 2).unwrap(), (vec![3, 4], "4".to_owned()));
        assert_eq!(page(all.clone(), "4", 2).unwrap(), (vec![5], String::new()));
        assert_eq!(page(all.clone(), "6", 2).unwrap_err().code(), Code::Aborted);
        assert_eq!(page(all.clone(), "x", 2).unwrap_err().code(), Code::Aborted);
        assert_eq!(page(all, "", -1).unwrap_err().code(), Code::InvalidArgument);
    }
}
