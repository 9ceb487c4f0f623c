//! What ranks tell each other of their parameters at the start, as the numbers that every link can gather.

use crate::plan::StageId;
use crate::stage::NamedParameter;

/// One parameter of one stage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Row {
    pub(super) stage: StageId,
    /// Burn's identifier.
    pub(super) id: u64,
    pub(super) path: String,
    pub(super) shape: Vec<usize>,
    /// Element type, by name.
    pub(super) dtype: String,
    pub(super) bytes: usize,
    pub(super) trainable: bool,
}

impl Row {
    pub(super) fn new(stage: StageId, parameter: NamedParameter) -> Self {
        let NamedParameter { path, id, shape, dtype, trainable } = parameter;
        let bytes = shape.iter().product::<usize>() * dtype.size();
        Self { stage, id: id.val(), path, shape, dtype: format!("{dtype:?}"), bytes, trainable }
    }

    /// Shape, element type and whether it is trained, in words.
    pub(super) fn form(&self) -> String {
        let trained = if self.trainable { "trained" } else { "frozen" };
        format!("{:?} of {}, {trained}", self.shape, self.dtype)
    }
}

/// Rows as numbers; a 64-bit identifier takes two, since a number holds 53 bits.
pub(super) fn write(rows: &[Row]) -> Vec<f64> {
    let mut numbers = Vec::new();
    for row in rows {
        numbers.extend([row.stage.index(), row.stage.replica()].map(|n| n as f64));
        numbers.extend([(row.id >> 32) as f64, (row.id & u64::from(u32::MAX)) as f64]);
        numbers.extend([row.bytes as f64, f64::from(u8::from(row.trainable))]);
        numbers.push(row.shape.len() as f64);
        numbers.extend(row.shape.iter().map(|&dim| dim as f64));
        for text in [&row.path, &row.dtype] {
            numbers.push(text.len() as f64);
            numbers.extend(text.bytes().map(f64::from));
        }
    }
    numbers
}

/// The rows that [`write`] wrote; `None` if they are not whole.
pub(super) fn read(numbers: &[f64]) -> Option<Vec<Row>> {
    let mut rest = numbers.iter().copied();
    let mut rows = Vec::new();
    while let Some(index) = rest.next() {
        let stage = StageId::in_replica(rest.next()? as usize, index as usize);
        let id = (rest.next()? as u64) << 32 | rest.next()? as u64;
        let (bytes, trainable) = (rest.next()? as usize, rest.next()? != 0.0);
        let shape = list(&mut rest)?.into_iter().map(|dim| dim as usize).collect();
        let path = text(&mut rest)?;
        rows.push(Row { stage, id, path, shape, dtype: text(&mut rest)?, bytes, trainable });
    }
    Some(rows)
}

fn list(rest: &mut impl Iterator<Item = f64>) -> Option<Vec<f64>> {
    let length = rest.next()? as usize;
    let list: Vec<f64> = rest.take(length).collect();
    (list.len() == length).then_some(list)
}

fn text(rest: &mut impl Iterator<Item = f64>) -> Option<String> {
    String::from_utf8(list(rest)?.into_iter().map(|byte| byte as u8).collect()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{Strategy, any};
    use proptest::{prop_assert_eq, proptest};

    fn rows() -> impl Strategy<Value = Vec<Row>> {
        let shape = proptest::collection::vec(0usize..1 << 40, 0..4);
        let row = (any::<u16>(), 0usize..2, any::<u64>(), ".{0,12}", shape, 0usize..1 << 50, any::<bool>());
        let row = row.prop_map(|(index, replica, id, path, shape, bytes, trainable)| Row {
            stage: StageId::in_replica(replica, index as usize),
            id,
            path,
            shape,
            dtype: "F32".to_owned(),
            bytes,
            trainable,
        });
        proptest::collection::vec(row, 0..5)
    }

    proptest! {
        #[test]
        fn rows_come_out_as_they_went_in(rows in rows()) {
            prop_assert_eq!(read(&write(&rows)), Some(rows));
        }

        #[test]
        fn rows_that_were_cut_short_are_not_read(rows in rows(), cut in 1usize..4) {
            let mut numbers = write(&rows);
            numbers.truncate(numbers.len().saturating_sub(cut));
            let read = read(&numbers);
            proptest::prop_assert!(read.is_none() || rows.is_empty());
        }
    }
}
