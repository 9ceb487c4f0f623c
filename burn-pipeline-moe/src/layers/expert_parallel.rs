//! Expert parallelism over data-parallel replicas: each choice's row is sent to the replica that holds its expert, and
//! the result is sent back.
//!
//! Guarantees: the results are those of one device's experts for the same choices, up to rounding differences of
//! matmuls over other rows. Each replica routes its own microbatch, so choices, drops, loads and auxiliary losses are
//! those of one device with that microbatch.
//!
//! 1. Of `n` replicas, replica `r` (from 0) holds part `r` of `n` equal parts of the experts; with tensor parallelism,
//!    of its member's experts.
//! 2. *With a capacity* ([`by_capacity`]) all experts have equally many rows from each replica, so shapes follow from
//!    sizes: one all-to-all of blocks, which can be captured. All replicas' microbatches must have the same size,
//!    because capacities depend on it.
//! 3. *Without a capacity* ([`by_load`]) replicas exchange their loads, which each reads from its device, and then send
//!    only the rows of choices. Microbatches may differ in size. Every expert then runs as many rows as the fullest
//!    one.
//! 4. An expert's rows are ordered by replica, so sums over them have a fixed order. Gradients take the same way back.
//!
//! Lepikhin et al., "GShard" (2020), section 3; Gale et al., "MegaBlocks" (2022), for (3).

use super::experts::Experts;
use crate::ops::with_zero_row;
use crate::router::{PackedRows, TokenDispatch};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_pipeline::tensor_parallel::TensorGroup;
use std::ops::Range;

/// The sums over each token's choices `[tokens, d]`. The rows were dispatched evenly to the experts of all replicas.
pub(super) fn by_capacity(
    experts: &Experts,
    replicas: &TensorGroup,
    places: &TokenDispatch,
    tokens: Tensor<2>,
    gates: Tensor<2>,
) -> Tensor<2> {
    let (n, held) = (replicas.size(), experts.count());
    let rows = replicas.all_to_all(places.dispatch(tokens), 0);
    let [_, capacity, d] = rows.dims();
    let rows = rows.reshape([n, held, capacity, d]).swap_dims(0, 1).reshape([held, n * capacity, d]);
    let rows = experts.forward(rows).reshape([held, n, capacity, d]).swap_dims(0, 1);
    places.combine(replicas.all_to_all(rows.reshape([n * held, capacity, d]), 0), gates)
}

/// The same without a capacity, given all choices `[tokens, k]` and the load of each expert. `own` are the experts of
/// this rank and of the ranks at its place in other replicas.
pub(super) fn by_load(
    experts: &Experts,
    replicas: &TensorGroup,
    own: Range<usize>,
    (chosen, load): (Tensor<2, Int>, Tensor<1, Int>),
    tokens: Tensor<2>,
    gates: Tensor<2>,
) -> Tensor<2> {
    let device = tokens.device();
    let routes = Routes::new(&replicas.all_counts(load.clone()), own, experts.count(), replicas.member());
    let packed = PackedRows::new(chosen, load, usize::MAX);
    let choices = gates.dims().iter().product::<usize>();
    let sent = with_zero_row(packed.permute(tokens)).select(0, indices(routes.own_rows(choices), &device));
    let came = replicas.all_to_all_rows(sent, &routes.sent, &routes.received);
    let y = routes.run(experts, came, &device);
    let back = replicas.all_to_all_rows(y, &routes.received, &routes.sent);
    packed.unpermute(back.select(0, indices(routes.all_rows(choices), &device)), gates)
}

/// The numbers of rows sent and received.
struct Routes {
    /// The first packed row that this rank sends.
    first: usize,
    /// Rows sent to each replica.
    sent: Vec<usize>,
    /// Rows received from each replica.
    received: Vec<usize>,
    /// For each replica, the load of each expert that this rank holds.
    loads: Vec<Vec<usize>>,
}

impl Routes {
    /// Computes them from the loads of all experts on all replicas. Each replica holds `held` of the experts `own`.
    fn new(all: &[Vec<usize>], own: Range<usize>, held: usize, member: usize) -> Self {
        let of = |replica: usize| own.start + replica * held..own.start + (replica + 1) * held;
        let (mine, count) = (&all[member], all.len());
        let sent = (0..count).map(|replica| mine[of(replica)].iter().sum()).collect();
        let loads: Vec<Vec<usize>> = all.iter().map(|load| load[of(member)].to_vec()).collect();
        let received = loads.iter().map(|load| load.iter().sum()).collect();
        Self { first: mine[..own.start].iter().sum(), sent, received, loads }
    }

    /// The packed row of each row that is sent, followed by the zero row at index `choices`.
    fn own_rows(&self, choices: usize) -> impl Iterator<Item = usize> + use<> {
        let count: usize = self.sent.iter().sum();
        (self.first..self.first + count).chain([choices])
    }

    /// The row that came back for each of `choices` packed rows; the zero row for rows of other ranks' experts.
    fn all_rows(&self, choices: usize) -> impl Iterator<Item = usize> + use<> {
        let (first, count) = (self.first, self.sent.iter().sum::<usize>());
        (0..choices).map(move |row| if (first..first + count).contains(&row) { row - first } else { count })
    }

    /// The experts' results for the received rows `[n + 1, d]`, in their order, with the zero row last.
    fn run(&self, experts: &Experts, came: Tensor<2>, device: &Device) -> Tensor<2> {
        let ([zero, d], held) = ([came.dims()[0] - 1, came.dims()[1]], experts.count());
        let load = |expert: usize| self.loads.iter().map(|load| load[expert]).sum::<usize>();
        let most = (0..held).map(load).max().unwrap_or_default().max(1);
        // The place of each row among its expert's rows, and the row in each place.
        let (mut places, mut rows) = (Vec::new(), vec![zero; held * most]);
        let mut next: Vec<usize> = (0..held).map(|expert| expert * most).collect();
        for (expert, count) in self.loads.iter().flat_map(|load| load.iter().copied().enumerate()) {
            let range = next[expert]..next[expert] + count;
            rows[range.clone()].iter_mut().zip(places.len()..).for_each(|(row, came)| *row = came);
            places.extend(range);
            next[expert] += count;
        }
        let x = came.select(0, indices(rows.into_iter(), device)).reshape([held, most, d]);
        let y = with_zero_row(experts.forward(x).reshape([held * most, d]));
        y.select(0, indices(places.into_iter().chain([held * most]), device))
    }
}

fn indices(numbers: impl Iterator<Item = usize>, device: &Device) -> Tensor<1, Int> {
    let numbers: Vec<i64> = numbers.map(|number| number as i64).collect();
    Tensor::from_data(TensorData::from(&*numbers), device)
}
