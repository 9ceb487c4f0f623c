//! The members' descriptions of a collective, joined before it is launched.
//!
//! Guarantees: if members are at different places, all of them learn each one's place; if their lists differ in
//! length, or in the shape or element type of a tensor that two of them have, all get the same error, which names
//! the member; a tensor that only some have is described for those that lack it.

use burn::tensor::DType;
use serde::{Deserialize, Serialize};

/// Why a collective is not launched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// The members are at different places, listed in member order.
    Elsewhere(Vec<String>),
    /// The members' lists do not match.
    Lists(String),
}

/// Element type and shape of a tensor; `None` if the member lacks it.
pub(crate) type Spec = Option<(DType, Vec<usize>)>;

/// Describes a member's part: the collective as text, and its list.
pub(crate) fn write(what: &str, specs: &[Spec]) -> Vec<u8> {
    // A text and a list of numbers can always be encoded.
    postcard::to_stdvec(&(what, specs)).unwrap_or_default()
}

/// Joins the members' descriptions. Returns also whether there is anything to launch.
pub(crate) fn join(parts: &[Vec<u8>]) -> (Vec<u8>, bool) {
    let union = union(parts);
    let launches = union.as_ref().is_ok_and(|specs| specs.iter().any(Option::is_some));
    (postcard::to_stdvec(&union).unwrap_or_default(), launches)
}

/// Reads joined descriptions.
pub(crate) fn joined(bytes: &[u8]) -> Result<Vec<Spec>, Refusal> {
    postcard::from_bytes(bytes)
        .unwrap_or_else(|error| Err(Refusal::Lists(format!("the description of their lists is broken: {error}"))))
}

fn union(parts: &[Vec<u8>]) -> Result<Vec<Spec>, Refusal> {
    let mut texts: Vec<String> = Vec::new();
    let mut lists: Vec<Vec<Spec>> = Vec::new();
    for (member, part) in parts.iter().enumerate() {
        let read = postcard::from_bytes(part);
        let (what, specs) = read.map_err(|_| Refusal::Lists(format!("member {member} of the group sent no list")))?;
        texts.push(what);
        lists.push(specs);
    }
    if texts.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err(Refusal::Elsewhere(texts));
    }
    union_of_lists(lists).map_err(Refusal::Lists)
}

fn union_of_lists(lists: Vec<Vec<Spec>>) -> Result<Vec<Spec>, String> {
    let mut together: Vec<Spec> = Vec::new();
    for (member, specs) in lists.into_iter().enumerate() {
        if member == 0 {
            together = specs;
            continue;
        }
        if specs.len() != together.len() {
            let (ours, theirs) = (together.len(), specs.len());
            return Err(format!("member {member} of the group holds {theirs} tensors, those before it {ours}"));
        }
        for (place, (known, spec)) in together.iter_mut().zip(specs).enumerate() {
            match (&known, spec) {
                (Some(known), Some(spec)) if *known != spec => {
                    let say = |(dtype, shape): &(DType, Vec<usize>)| match dtype {
                        // Burn panics when it prints an invalid scheme.
                        DType::QFloat(_) => format!("{shape:?}, quantised"),
                        dtype => format!("{shape:?} of {dtype:?}"),
                    };
                    let (theirs, ours) = (say(&spec), say(known));
                    return Err(format!("tensor {place} of member {member} is {theirs}, those before it hold {ours}"));
                }
                (None, spec) => *known = spec,
                _ => {}
            }
        }
    }
    Ok(together)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(shape: &[usize]) -> Spec {
        Some((DType::BF16, shape.to_vec()))
    }

    fn together(lists: &[Vec<Spec>]) -> Result<Vec<Spec>, Refusal> {
        let parts: Vec<Vec<u8>> = lists.iter().map(|list| write("a sum", list)).collect();
        joined(&join(&parts).0)
    }

    fn refused(lists: &[Vec<Spec>]) -> String {
        match together(lists) {
            Err(Refusal::Lists(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_one_member_lacks_the_others_describe() {
        let first = vec![held(&[2, 3]), None, None, held(&[])];
        let second = vec![None, held(&[0, 7]), None, held(&[])];
        let expected = vec![held(&[2, 3]), held(&[0, 7]), None, held(&[])];
        assert_eq!(together(&[first.clone(), second]), Ok(expected));
        assert_eq!(together(std::slice::from_ref(&first)), Ok(first));
        assert_eq!(together(&[Vec::new(), Vec::new()]), Ok(Vec::new()));
    }

    #[test]
    fn lists_that_differ_are_named() {
        let error = refused(&[vec![held(&[2])], vec![held(&[2])], vec![held(&[2]), None]]);
        assert_eq!(error, "member 2 of the group holds 2 tensors, those before it 1");
        let error = refused(&[vec![None], vec![held(&[2])], vec![held(&[3])]]);
        assert_eq!(error, "tensor 0 of member 2 is [3] of BF16, those before it hold [2] of BF16");
        let wide = vec![Some((DType::F32, vec![2]))];
        assert!(refused(&[vec![held(&[2])], wide]).contains("[2] of F32"));
        assert!(joined(&[]).is_err());
        assert!(joined(&join(&[vec![9]]).0).is_err());
    }

    #[test]
    fn members_at_other_places_learn_where_each_one_is() {
        let parts = ["a sum", "a sum", "the end of its row"].map(|what| write(what, &[held(&[2])]));
        let texts = ["a sum", "a sum", "the end of its row"].map(str::to_owned).to_vec();
        assert_eq!(joined(&join(&parts).0), Err(Refusal::Elsewhere(texts)));
    }
}
