//! Which memory a kernel has read and written, in words of 4 bytes.

use std::collections::HashMap;
use std::ops::Range;

/// The bytes of a page, and of a word.
const PAGE: u64 = 4096;
const WORD: u64 = 4;

/// A bit for each word: read, written.
type Page = [[u64; 16]; 2];

/// The touched words, by page.
#[derive(Default)]
pub struct Touched {
    pages: HashMap<u64, Box<Page>>,
    /// The page of the last access.
    current: Option<(u64, Box<Page>)>,
}

impl Touched {
    pub fn add(&mut self, address: u64, bytes: u64, writes: bool) {
        for word in address / WORD..=(address + bytes - 1) / WORD {
            let (page, bit) = (word / (PAGE / WORD), word % (PAGE / WORD));
            self.page(page)[usize::from(writes)][bit as usize / 64] |= 1 << (bit % 64);
        }
    }

    fn page(&mut self, page: u64) -> &mut Page {
        if self.current.as_ref().is_none_or(|(current, _)| *current != page) {
            let other = self.pages.remove(&page).unwrap_or_default();
            if let Some((before, bits)) = self.current.replace((page, other)) {
                self.pages.insert(before, bits);
            }
        }
        &mut self.current.as_mut().unwrap().1
    }

    /// The ranges that were read, or those that were written, in order.
    pub fn ranges(&mut self, writes: bool) -> Vec<Range<u64>> {
        if let Some((page, bits)) = self.current.take() {
            self.pages.insert(page, bits);
        }
        let mut pages: Vec<_> = self.pages.iter().collect();
        pages.sort_unstable_by_key(|(page, _)| **page);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (page, bits) in pages {
            for word in
                (0..PAGE / WORD).filter(|word| bits[usize::from(writes)][*word as usize / 64] >> (word % 64) & 1 == 1)
            {
                let start = page * PAGE + word * WORD;
                match ranges.last_mut().filter(|range| range.end == start) {
                    Some(range) => range.end += WORD,
                    None => ranges.push(start..start + WORD),
                }
            }
        }
        ranges
    }
}
