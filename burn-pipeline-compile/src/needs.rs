//! The dependencies of groups of nodes, direct and indirect.
//!
//! Stored as bits in both directions, so that 64 groups are tested at once: programs have thousands.

/// The dependencies among a number of groups.
pub(crate) struct Needs {
    words: usize,
    needs: Vec<u64>,
    needed: Vec<u64>,
}

const BITS: usize = u64::BITS as usize;

impl Needs {
    /// No dependencies, among this many groups.
    pub(crate) fn new(count: usize) -> Self {
        let words = count.div_ceil(BITS);
        Self { words, needs: vec![0; count * words], needed: vec![0; count * words] }
    }

    pub(crate) fn has(&self, of: usize, on: usize) -> bool {
        self.needs[of * self.words + on / BITS] >> (on % BITS) & 1 == 1
    }

    pub(crate) fn insert(&mut self, of: usize, on: usize) {
        self.needs[of * self.words + on / BITS] |= 1 << (on % BITS);
        self.needed[on * self.words + of / BITS] |= 1 << (of % BITS);
    }

    pub(crate) fn remove(&mut self, of: usize, on: usize) {
        self.needs[of * self.words + on / BITS] &= !(1 << (on % BITS));
        self.needed[on * self.words + of / BITS] &= !(1 << (of % BITS));
    }

    /// Makes one group depend on all dependencies of another.
    pub(crate) fn extend(&mut self, of: usize, from: usize) {
        for word in 0..self.words {
            let mut more = self.needs[from * self.words + word] & !self.needs[of * self.words + word];
            while more != 0 {
                self.insert(of, word * BITS + more.trailing_zeros() as usize);
                more &= more - 1;
            }
        }
    }

    /// The number of groups that one depends on.
    pub(crate) fn count(&self, of: usize) -> usize {
        self.row(&self.needs, of).iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns true if a third group depends on one of the two, and the other one depends on it.
    pub(crate) fn stands_between(&self, one: usize, other: usize) -> bool {
        let chain = |first: usize, last: usize| {
            let both = self.row(&self.needs, last).iter().zip(self.row(&self.needed, first));
            both.enumerate().any(|(word, (needs, needed))| {
                let own = [one, other].into_iter().filter(|group| group / BITS == word);
                let mask = own.fold(0, |mask: u64, group| mask | 1 << (group % BITS));
                needs & needed & !mask != 0
            })
        };
        chain(one, other) || chain(other, one)
    }

    fn row<'a>(&self, of: &'a [u64], at: usize) -> &'a [u64] {
        &of[at * self.words..(at + 1) * self.words]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn needs_are_those_of_a_plain_table(
            count in 2_usize..200,
            changes in prop::collection::vec((0_u8..3, any::<usize>(), any::<usize>()), 0..300),
        ) {
            let mut needs = Needs::new(count);
            let mut table = vec![vec![false; count]; count];
            for (change, of, on) in changes {
                let (of, on) = (of % count, on % count);
                match change {
                    0 => {
                        needs.insert(of, on);
                        table[of][on] = true;
                    }
                    1 => {
                        needs.remove(of, on);
                        table[of][on] = false;
                    }
                    _ => {
                        needs.extend(of, on);
                        let thirds: Vec<usize> = (0..count).filter(|&third| table[on][third]).collect();
                        thirds.into_iter().for_each(|third| table[of][third] = true);
                    }
                }
                let chain = |first: usize, third: usize, last: usize| table[third][first] && table[last][third];
                let between = (0..count)
                    .filter(|third| ![of, on].contains(third))
                    .any(|third| chain(of, third, on) || chain(on, third, of));
                prop_assert_eq!(needs.stands_between(of, on), between);
                prop_assert_eq!(needs.count(of), table[of].iter().filter(|needed| **needed).count());
                prop_assert_eq!(needs.has(of, on), table[of][on]);
            }
        }
    }
}
