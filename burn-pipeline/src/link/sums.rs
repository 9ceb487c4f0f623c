//! What the members of a group hold, put together before they add it up.
//!
//! Guarantees: members whose lists differ in length, or in the shape or element type of a tensor that both hold, are
//! told of it by name, all alike; a tensor that only some hold is described for those that lack it.
//!
//! A description is one byte a tensor that is not held (0), or 1, the element type and the number of dimensions (1 byte
//! each) and 8 bytes a dimension. What all hold together is the same, after a byte 0, or a byte 1 and a text.

use super::wire::codes::{dtype_code, dtype_of};
use burn::tensor::DType;

/// Element type and shape of a tensor; `None` of one that is not held.
pub(super) type PayloadSpec = Option<(DType, Vec<usize>)>;

/// Describes a list; `None` if an element type cannot cross a link.
pub(super) fn write(forms: &[PayloadSpec]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for form in forms {
        match form {
            None => bytes.push(0),
            Some((dtype, shape)) => {
                bytes.extend([1, dtype_code(*dtype).ok()?, u8::try_from(shape.len()).ok()?]);
                bytes.extend(shape.iter().flat_map(|&size| (size as u64).to_le_bytes()));
            }
        }
    }
    Some(bytes)
}

/// Reads a description; `None` if it is none.
pub(super) fn read(mut bytes: &[u8]) -> Option<Vec<PayloadSpec>> {
    let mut forms = Vec::new();
    while let Some((&held, rest)) = bytes.split_first() {
        bytes = rest;
        if held == 0 {
            forms.push(None);
            continue;
        }
        let (&[dtype, dims], rest) = bytes.split_first_chunk()?;
        let (sizes, left) = rest.split_at_checked(usize::from(dims) * size_of::<u64>())?;
        let shape = sizes.as_chunks().0.iter().map(|&size| u64::from_le_bytes(size) as usize).collect();
        forms.push(Some((dtype_of(dtype).ok()?, shape)));
        bytes = left;
    }
    Some(forms)
}

/// Puts the members' descriptions together.
pub(super) fn join(parts: &[Vec<u8>]) -> Vec<u8> {
    match union(parts) {
        Ok(forms) => [0].into_iter().chain(write(&forms).unwrap_or_default()).collect(),
        Err(reason) => [1].into_iter().chain(reason.bytes()).collect(),
    }
}

/// Reads what was put together.
pub(super) fn joined(bytes: &[u8]) -> Result<Vec<PayloadSpec>, String> {
    match bytes.split_first() {
        Some((0, forms)) => read(forms).ok_or_else(|| "the description of their lists is none".to_owned()),
        Some((_, reason)) => Err(String::from_utf8_lossy(reason).into_owned()),
        None => Err("there is no description of their lists".to_owned()),
    }
}

fn union(parts: &[Vec<u8>]) -> Result<Vec<PayloadSpec>, String> {
    let mut together: Vec<PayloadSpec> = Vec::new();
    for (member, part) in parts.iter().enumerate() {
        let forms = read(part).ok_or_else(|| format!("member {member} of the group sent no list"))?;
        if member == 0 {
            together = forms;
            continue;
        }
        if forms.len() != together.len() {
            let (ours, theirs) = (together.len(), forms.len());
            return Err(format!("member {member} of the group holds {theirs} tensors, those before it {ours}"));
        }
        for (place, (known, form)) in together.iter_mut().zip(forms).enumerate() {
            match (&known, form) {
                (Some(known), Some(form)) if *known != form => {
                    let say = |(dtype, shape): &(DType, Vec<usize>)| format!("{shape:?} of {dtype:?}");
                    let (theirs, ours) = (say(&form), say(known));
                    return Err(format!("tensor {place} of member {member} is {theirs}, those before it hold {ours}"));
                }
                (None, form) => *known = form,
                _ => {}
            }
        }
    }
    Ok(together)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(shape: &[usize]) -> PayloadSpec {
        Some((DType::BF16, shape.to_vec()))
    }

    fn together(lists: &[Vec<PayloadSpec>]) -> Result<Vec<PayloadSpec>, String> {
        let parts: Vec<Vec<u8>> = lists.iter().map(|list| write(list).unwrap()).collect();
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
        assert!(joined(&join(&[vec![1, 3]])).is_err());
    }
}
