//! What the members of a group hold, put together before they add it up.
//!
//! Guarantees: members whose lists differ in length, or in the shape or element type of a tensor that both hold, all get
//! the same error, which names the member; a tensor that only some hold is described for those that lack it.

use burn::tensor::DType;

/// Element type and shape of a tensor; `None` if the member does not hold it.
pub(crate) type Spec = Option<(DType, Vec<usize>)>;

/// Describes a member's list.
pub(crate) fn write(specs: &[Spec]) -> Vec<u8> {
    // Nothing in a list of numbers can fail to be written.
    postcard::to_stdvec(specs).unwrap_or_default()
}

/// Puts the members' descriptions together.
pub(crate) fn join(parts: &[Vec<u8>]) -> Vec<u8> {
    postcard::to_stdvec(&union(parts)).unwrap_or_default()
}

/// Reads what was put together.
pub(crate) fn joined(bytes: &[u8]) -> Result<Vec<Spec>, String> {
    postcard::from_bytes(bytes)
        .unwrap_or_else(|error| Err(format!("the description of their lists is broken: {error}")))
}

fn union(parts: &[Vec<u8>]) -> Result<Vec<Spec>, String> {
    let mut together: Vec<Spec> = Vec::new();
    for (member, part) in parts.iter().enumerate() {
        let specs: Vec<Spec> =
            postcard::from_bytes(part).map_err(|_| format!("member {member} of the group sent no list"))?;
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
                        // Burn panics where it prints a scheme that cannot be.
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

    fn together(lists: &[Vec<Spec>]) -> Result<Vec<Spec>, String> {
        let parts: Vec<Vec<u8>> = lists.iter().map(|list| write(list)).collect();
        joined(&join(&parts))
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
        let error = together(&[vec![held(&[2])], vec![held(&[2])], vec![held(&[2]), None]]).unwrap_err();
        assert_eq!(error, "member 2 of the group holds 2 tensors, those before it 1");
        let error = together(&[vec![None], vec![held(&[2])], vec![held(&[3])]]).unwrap_err();
        assert_eq!(error, "tensor 0 of member 2 is [3] of BF16, those before it hold [2] of BF16");
        let wide = vec![Some((DType::F32, vec![2]))];
        assert!(together(&[vec![held(&[2])], wide]).unwrap_err().contains("[2] of F32"));
        assert!(joined(&[]).is_err());
        assert!(joined(&join(&[vec![9]])).is_err());
    }
}
