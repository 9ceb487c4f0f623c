//! Checks that all ranks form the same groups.

use crate::link::error::LinkError;
use crate::link::gather::gather;
use crate::link::link_trait::Link;
use std::time::Instant;

/// Refuses lists of groups that differ between ranks, or that name a rank that does not exist. All ranks call it.
///
/// # Errors
/// Returns [`LinkError::Groups`] if a rank passes another list; [`LinkError::NoSuchRank`]; else as
/// [`Link::all_gather`].
pub fn same_groups(link: &mut dyn Link, groups: &[Vec<usize>], deadline: Instant) -> Result<(), LinkError> {
    let (rank, ranks) = (link.rank(), link.ranks());
    let table: Vec<Vec<Vec<usize>>> = gather(link, &groups.to_vec(), deadline)?;
    if let Some(peer) = table.iter().position(|theirs| theirs != groups) {
        return Err(LinkError::Groups { rank, peer });
    }
    match groups.iter().flatten().find(|&&member| member >= ranks) {
        Some(&member) => Err(LinkError::NoSuchRank { rank: member, ranks }),
        None => Ok(()),
    }
}
