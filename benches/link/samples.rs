//! Measurements by contestant and size, as text between processes and as a table.

use std::collections::BTreeMap;

/// The message sizes in bytes.
pub(crate) const SIZES: [usize; 7] = [8, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// The contestants, in printed order.
pub(crate) const CONTESTANTS: [&str; 8] =
    ["memory copy", "threads", "TCP", "raw MPI", "MPI", "raw NCCL", "NCCL link", "NCCL link, on the device"];

/// The number of repetitions of a size, for about equal bytes in all.
pub(crate) fn repetitions(size: usize) -> usize {
    (64_usize << 20).div_ceil(size).clamp(8, 400)
}

/// Measured seconds.
#[derive(Default)]
pub(crate) struct Samples(BTreeMap<(usize, usize), Vec<f64>>);

impl Samples {
    pub(crate) fn add(&mut self, contestant: &str, size: usize, seconds: &[f64]) {
        let place = CONTESTANTS.iter().position(|&known| known == contestant).unwrap();
        self.0.entry((place, size)).or_default().extend(seconds);
    }

    /// Reads lines of a contestant, a size and seconds; ignores others.
    #[cfg(any(feature = "mpi", feature = "nccl"))]
    pub(crate) fn read(&mut self, text: &str) {
        for line in text.lines() {
            let mut fields = line.split('\t');
            let (Some(contestant), Some(size), Some(seconds)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            let seconds: Vec<f64> = seconds.split(' ').map(|number| number.parse().unwrap()).collect();
            self.add(contestant, size.parse().unwrap(), &seconds);
        }
    }

    /// The text for [`Samples::read`].
    #[cfg(any(feature = "mpi", feature = "nccl"))]
    pub(crate) fn write(&self) -> String {
        let line = |(&(contestant, size), seconds): (&(usize, usize), &Vec<f64>)| {
            let seconds: Vec<String> = seconds.iter().map(f64::to_string).collect();
            format!("{}\t{size}\t{}\n", CONTESTANTS[contestant], seconds.join(" "))
        };
        self.0.iter().map(line).collect()
    }

    pub(crate) fn print(&self) {
        let there: Vec<usize> =
            (0..CONTESTANTS.len()).filter(|place| self.0.keys().any(|(known, _)| known == place)).collect();
        let names: Vec<&str> = there.iter().map(|&place| CONTESTANTS[place]).collect();
        println!("| bytes | {} |", names.join(" | "));
        println!("|---|{}", "---|".repeat(names.len()));
        for size in SIZES {
            let cell = |place: &usize| {
                let seconds = &self.0[&(*place, size)];
                let rate = size as f64 / quantile(seconds, 0.5) / 1e9;
                format!("{} {rate:.2}", spread(seconds, 1e6, 1))
            };
            println!("| {size} | {} |", there.iter().map(cell).collect::<Vec<_>>().join(" | "));
        }
    }
}

/// A quantile of at least one number.
pub(crate) fn quantile(numbers: &[f64], part: f64) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * part).round() as usize]
}

/// The median, with the 10th and 90th percentiles.
pub(crate) fn spread(numbers: &[f64], unit: f64, digits: usize) -> String {
    let [low, median, high] = [0.1, 0.5, 0.9].map(|part| quantile(numbers, part) * unit);
    format!("{median:.digits$} ({low:.digits$}..{high:.digits$})")
}
