//! Reads the golden texts under `goldens/passes` (see the README there).

use crate::golden::{Golden, read};
use burn_pipeline_plan::plan::{Action, Placement, Plan};
use std::collections::BTreeMap;

/// One `= name rest` block.
pub(crate) struct Block<'a> {
    pub(crate) name: &'a str,
    /// The words after the name.
    pub(crate) words: Vec<&'a str>,
    pub(crate) body: &'a str,
}

impl<'a> Block<'a> {
    /// The value of `key=value` among the words.
    pub(crate) fn value(&self, key: &str) -> Option<&'a str> {
        value(&self.words, key)
    }

    /// The lines of the part `- name`.
    pub(crate) fn part(&self, name: &str) -> Option<&'a str> {
        let head = format!("- {name}\n");
        let start = self.body.find(&head)? + head.len();
        let rest = &self.body[start..];
        Some(&rest[..rest.find("\n- ").map_or(rest.len(), |end| end + 1)])
    }
}

pub(crate) fn value<'a>(words: &[&'a str], key: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

pub(crate) fn blocks(text: &str) -> Vec<Block<'_>> {
    let blocks = text.strip_prefix("= ").expect("a golden text starts with a block").split("\n= ");
    blocks
        .map(|block| {
            let (head, body) = block.split_once('\n').unwrap_or((block, ""));
            let mut words = head.split(' ');
            Block { name: words.next().unwrap(), words: words.collect(), body }
        })
        .collect()
}

pub(crate) fn rows(text: &str) -> Vec<Vec<Action>> {
    text.lines().map(|line| line.split(',').map(|cell| cell.parse().unwrap()).collect()).collect()
}

/// A plan of these rows. Hand-made rows may omit stages: those go to rank 0, where nothing needs them.
pub(crate) fn plan(name: &str, rows: Vec<Vec<Action>>) -> Plan {
    let tasks = || {
        rows.iter().enumerate().flat_map(|(rank, row)| row.iter().flat_map(move |a| a.tasks().map(move |t| (rank, t))))
    };
    let stages = tasks().map(|(_, t)| t.stage().index() + 1).max().unwrap_or(1);
    let microbatches = tasks().filter_map(|(_, t)| t.microbatch()).max().unwrap_or(0) + 1;
    let mut map = vec![0; stages];
    tasks().for_each(|(rank, t)| map[t.stage().index()] = rank);
    Plan::new(name, Placement::free(rows.len(), map).unwrap(), vec![microbatches], rows).unwrap()
}

/// The CSV text that is hashed, without idle cells.
pub(crate) fn canonical(plan: &Plan) -> String {
    plan.without_idle().to_csv()
}

/// 64-bit FNV-1a, as 16 hexadecimal digits.
pub(crate) fn fnv(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

/// PyTorch 2.7.1's orders by name, without idle cells.
pub(crate) fn orders() -> BTreeMap<String, Plan> {
    archive(include_str!("goldens/orders-2.7.1.txt"))
}

/// PyTorch 2.15.0's orders by name, including DualPipeV's, without idle cells.
pub(crate) fn orders_2_15() -> BTreeMap<String, Plan> {
    archive(include_str!("goldens/orders-2.15.0.txt"))
}

fn archive(text: &'static str) -> BTreeMap<String, Plan> {
    let order = |golden: Golden| {
        let name = format!("{}_p{}_v{}_m{}", golden.schedule, golden.ranks, golden.chunks, golden.microbatches);
        let row = |row: &Vec<&str>| row.iter().map(|cell| cell.parse().unwrap()).collect();
        let rows = golden.rows.ok()?.iter().map(row).collect();
        Some((name.clone(), Plan::infer(name, rows).unwrap()))
    };
    read(text).into_iter().filter_map(order).collect()
}

/// The same plan without its waits.
pub(crate) fn without_waits(plan: &Plan) -> Plan {
    let is_wait = |action: &Action| action.tasks().any(|task| task.op().is_wait());
    let kept = |row: &Vec<Action>| row.iter().copied().filter(|action| !is_wait(action)).collect();
    plan.with_rows(plan.rows().iter().map(kept).collect())
}
