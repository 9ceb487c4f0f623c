//! A trial: the running plan and a challenger take turns, and their steps are compared.
//!
//! Guarantees: temporary or growing slowdowns of the machine affect both alike. A challenger that is not faster wins by
//! chance in about one of six trials, and then by less than the spread.
//!
//! 1. Of `4t` steps of each plan, the running one takes `t`, then the challenger `2t`, the running one `2t`, the
//!    challenger `2t`, and the running one `t` (the order ABBA, repeated).
//! 2. The first step of a turn and a challenger's warm-up steps are not counted.
//! 3. Steps are paired in order. The challenger wins if the median of the pairs' differences is above its standard
//!    error: `1.2533 s / sqrt(n)` for `n` pairs, with `s` estimated as 1.4826 times the median absolute deviation,
//!    which is robust to single slow steps (Rousseeuw and Croux, Alternatives to the Median Absolute Deviation, 1993).
//! 4. While the median is within two standard errors of zero, the turns are repeated, up to [`LOOKS`] times in all: on
//!    a shared machine, one round of turns cannot tell whether a plan is a fifth faster.

use super::profile::median;
use std::collections::VecDeque;

/// The maximum number of rounds of turns before a trial is decided.
const LOOKS: usize = 3;

/// The result of a challenger against the running plan. Seconds of a step are from call to return, the longest of all
/// ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// The challenger.
    pub challenger: String,
    /// The predicted seconds of its pass.
    pub predicted: f64,
    /// The median step of the running plan.
    pub running_seconds: f64,
    /// The median step of the challenger.
    pub challenger_seconds: f64,
    /// The seconds saved by the challenger: the median difference of paired steps.
    pub saved: f64,
    /// The standard error of that median.
    pub spread: f64,
}

impl Trial {
    /// Returns true if the challenger won. It then stays.
    pub fn is_won(&self) -> bool {
        self.saved > self.spread
    }

    /// Returns true if the difference is so small or uncertain that more steps may change the winner.
    pub(super) fn is_close(&self) -> bool {
        self.saved.abs() <= 2.0 * self.spread
    }

    /// Compares steps of the running plan and of the challenger, paired in order.
    pub(super) fn new(challenger: String, predicted: f64, [running, challenging]: [Vec<f64>; 2]) -> Self {
        let mut differences: Vec<f64> = running.iter().zip(&challenging).map(|(a, b)| a - b).collect();
        let saved = median(&mut differences);
        let pairs = differences.len() as f64;
        let mut deviations: Vec<f64> = differences.iter().map(|difference| (difference - saved).abs()).collect();
        let spread = 1.2533 * 1.4826 * median(&mut deviations) / pairs.sqrt();
        let [running_seconds, challenger_seconds] = [running, challenging].map(|mut seconds| median(&mut seconds));
        Self { challenger, predicted, running_seconds, challenger_seconds, saved, spread }
    }
}

impl std::fmt::Display for Trial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { challenger, running_seconds, challenger_seconds, saved, spread, .. } = self;
        let won = if self.is_won() { "taken" } else { "left" };
        write!(f, "{won}: {challenger}; {challenger_seconds:.6} s a step against {running_seconds:.6}")?;
        write!(f, ", {saved:.6} s saved (spread {spread:.6})")
    }
}

/// What to do after a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Another step of the same plan.
    Same,
    /// Switch to the other plan.
    Change,
    /// All steps were run; the running plan of before runs again.
    Over,
}

/// One round of turns.
fn turns(share: usize, warm_up: usize) -> VecDeque<Turn> {
    let turn = |(index, shares): (usize, usize)| {
        let settle = if index == 1 { warm_up.max(1) } else { 1 };
        Turn { challenger: index % 2 == 1, settle, steps: shares * share }
    };
    [1, 2, 2, 2, 1].into_iter().enumerate().map(turn).collect()
}

/// Steps of one plan in a row.
struct Turn {
    challenger: bool,
    /// Steps that are not counted.
    settle: usize,
    steps: usize,
}

/// The turns of two plans.
pub(super) struct Turns {
    left: VecDeque<Turn>,
    share: usize,
    /// How often the turns were started.
    looks: usize,
    /// Seconds of counted steps, of the running plan and of the challenger.
    pub(super) seconds: [Vec<f64>; 2],
}

impl Turns {
    /// Turns with this number of counted steps of each plan; the challenger first runs `warm_up` steps.
    pub(super) fn new(steps: usize, warm_up: usize) -> Self {
        let share = steps.div_ceil(4).max(1);
        Self { left: turns(share, warm_up), share, looks: 1, seconds: Default::default() }
    }

    /// Starts the turns again, if allowed, and keeps the counted steps. Returns whether it did.
    pub(super) fn repeat(&mut self) -> bool {
        let may = self.looks < LOOKS;
        if may {
            self.looks += 1;
            self.left = turns(self.share, 1);
        }
        may
    }

    /// Records a step.
    pub(super) fn take(&mut self, seconds: f64) -> Next {
        let Some(turn) = self.left.front_mut() else { return Next::Over };
        if turn.settle > 0 {
            turn.settle -= 1;
            return Next::Same;
        }
        self.seconds[usize::from(turn.challenger)].push(seconds);
        turn.steps -= 1;
        if turn.steps > 0 {
            return Next::Same;
        }
        self.left.pop_front();
        if self.left.is_empty() { Next::Over } else { Next::Change }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn both_plans_run_equally_often_and_a_drift_falls_on_both_alike() {
        let (mut turns, mut challenging, mut step) = (Turns::new(5, 3), false, 0.0);
        loop {
            // Each step takes longer than the one before; warm-up steps do not count.
            step += 1.0;
            match turns.take(step) {
                Next::Same => {}
                Next::Change => challenging = !challenging,
                Next::Over => break,
            }
        }
        assert!(!challenging, "the plan that ran before runs at the end");
        let [running, challenger] = &turns.seconds;
        assert_eq!((running.len(), challenger.len()), (8, 8));
        let mean = |seconds: &[f64]| seconds.iter().sum::<f64>() / 8.0;
        assert!((mean(running) - mean(challenger)).abs() < 1.0, "{running:?} {challenger:?}");
        assert!(!Trial::new(String::new(), 0.0, turns.seconds).is_won());
    }

    #[test]
    fn one_slow_step_decides_nothing_and_a_steady_gain_does() {
        let trial = |challenger: [f64; 8]| {
            let running = vec![1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.01];
            Trial::new(String::new(), 0.0, [running, challenger.to_vec()])
        };
        assert!(!trial([1.0, 1.0, 1.0, 1.01, 1.0, 1.0, 1.0, 1.0]).is_won());
        assert!(trial([0.9, 0.91, 0.9, 9.0, 0.89, 0.9, 0.9, 0.91]).is_won());
        let slow = trial([1.1, 1.12, 1.1, 0.1, 1.09, 1.1, 1.1, 1.1]);
        assert!(!slow.is_won() && slow.saved < 0.0, "{slow}");
    }

    /// A whole trial, of steps with these seconds.
    fn decided(mut seconds: impl FnMut(bool) -> f64) -> Trial {
        let (mut turns, mut challenging) = (Turns::new(8, 1), false);
        loop {
            match turns.take(seconds(challenging)) {
                Next::Same => {}
                Next::Change => challenging = !challenging,
                Next::Over => {
                    let trial = Trial::new(String::new(), 0.0, turns.seconds.clone());
                    if !trial.is_close() || !turns.repeat() {
                        return trial;
                    }
                }
            }
        }
    }

    #[test]
    fn plans_that_are_equally_fast_rarely_change_places() {
        let mut random = StdRng::seed_from_u64(7);
        let won = (0..300).filter(|_| decided(|_| random.random_range(1.0..1.1)).is_won()).count();
        assert!((25..75).contains(&won), "{won} of 300");
    }

    #[test]
    fn a_plan_that_is_a_fifth_faster_wins_among_steps_that_vary_by_more() {
        let mut random = StdRng::seed_from_u64(7);
        let mut seconds = |challenging| random.random_range(1.0..1.8) * if challenging { 0.8 } else { 1.0 };
        let at_once = |seconds: &mut dyn FnMut(bool) -> f64| {
            let sides = [false, true].map(|side| (0..8).map(|_| seconds(side)).collect());
            Trial::new(String::new(), 0.0, sides).is_won()
        };
        let missed_at_once = (0..300).filter(|_| !at_once(&mut seconds)).count();
        let missed = (0..300).filter(|_| !decided(&mut seconds).is_won()).count();
        assert!(missed * 5 < missed_at_once, "{missed} of 300, and {missed_at_once} with one round of turns");
    }
}
