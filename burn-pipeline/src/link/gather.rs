//! Typed values over [`Link::all_gather`]: every rank contributes a value, and gets the values of all ranks.
//!
//! Guarantees: values arrive bit for bit, floats included. Bytes that are not exactly one value of the type are an
//! error that names the rank that sent them. The encoding is
//! [postcard](https://postcard.jamesmunns.com/wire-format).

use super::error::LinkError;
use super::link_trait::Link;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Instant;

/// Gives every rank the values of all ranks, in rank order. All ranks must call it in the same order, with the same
/// type.
///
/// The type must not use serde attributes that skip fields or need their names (`skip_serializing_if`, `untagged`,
/// `flatten`), since the encoding has no field names.
pub(crate) fn gather<T: Serialize + DeserializeOwned>(
    link: &mut dyn Link,
    own: &T,
    deadline: Instant,
) -> Result<Vec<T>, LinkError> {
    let rank = link.rank();
    let table = link.all_gather(encode(rank, own)?, deadline)?;
    table.iter().enumerate().map(|(peer, bytes)| decode(rank, peer, bytes)).collect()
}

/// Encodes a value of this rank.
fn encode<T: Serialize>(rank: usize, own: &T) -> Result<Vec<u8>, LinkError> {
    let error = |error: postcard::Error| LinkError::Gather { rank, peer: rank, message: error.to_string() };
    postcard::to_stdvec(own).map_err(error)
}

/// Decodes the value that a rank sent; bytes after it are an error.
fn decode<T: DeserializeOwned>(rank: usize, peer: usize, bytes: &[u8]) -> Result<T, LinkError> {
    let message = match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => return Ok(value),
        Ok(_) => "bytes are left over".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(LinkError::Gather { rank, peer, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::threads::Threads;
    use burn::tensor::Device;
    use std::time::Duration;

    fn alone() -> (impl Link, Instant) {
        (Threads::new(1).link(0, Device::flex()), Instant::now() + Duration::from_secs(5))
    }

    #[test]
    fn floats_keep_every_bit() {
        let (mut link, deadline) = alone();
        let odd = vec![f64::NAN, -f64::NAN, -0.0, f64::INFINITY, 1.0 / 3.0, f64::MIN_POSITIVE / 8.0];
        let got = gather(&mut link, &odd, deadline).unwrap();
        let bits = |row: &[f64]| row.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&got[0]), bits(&odd));
    }

    #[test]
    fn bytes_that_are_not_one_value_are_refused() {
        let bytes = encode(0, &("name".to_owned(), 7u64)).unwrap();
        assert_eq!(decode::<(String, u64)>(0, 1, &bytes).unwrap(), ("name".to_owned(), 7));
        for length in 0..bytes.len() {
            assert!(decode::<(String, u64)>(0, 1, &bytes[..length]).is_err(), "{length} bytes");
        }
        assert!(decode::<(String, u64)>(0, 1, &[&bytes[..], &[0]].concat()).is_err());
    }
}
