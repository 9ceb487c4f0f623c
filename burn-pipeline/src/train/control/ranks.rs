//! Asking all ranks of a pipeline, and what is made of silence and errors.
//!
//! Guarantees: an answer comes within the deadline of the last sign of life; of several errors the first cause is
//! returned; after one, the pipeline is closed.

use crate::execute::ExecuteError;
use crate::link::{Activity, Failure};
use crate::train::control::command::{Answer, Command};
use crate::train::error::PipelineError;
use crate::train::pipeline::Pipeline;
use std::collections::BTreeMap;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

impl Pipeline {
    /// Gives every rank a command and waits for all answers.
    pub(crate) fn ask(&mut self, command: &Command) -> Result<Vec<Answer>, PipelineError> {
        if let Some(failure) = &self.closed {
            return Err(PipelineError::Closed(failure.clone()));
        }
        for sender in &self.commands {
            // A rank whose thread has ended does not answer, which is noticed below.
            let _ = sender.send(command.clone());
        }
        let answers = self.answers()?;
        for answer in &answers {
            match answer {
                Answer::Refused { rank, message } => {
                    return Err(PipelineError::Elsewhere { rank: *rank, message: message.clone() });
                }
                Answer::Apart { rank, theirs, others } => {
                    let (rank, theirs, others) = (*rank, theirs.clone(), others.clone());
                    return Err(PipelineError::Apart { rank, theirs, others });
                }
                _ => {}
            }
        }
        Ok(answers)
    }

    /// The ranks' answers, in the order of ranks. The error that is returned is the first cause, not its echoes.
    pub(crate) fn answers(&mut self) -> Result<Vec<Answer>, PipelineError> {
        let mut answers: BTreeMap<usize, Vec<Answer>> = BTreeMap::new();
        let mut errors: Vec<(usize, ExecuteError)> = Vec::new();
        let mut outstanding = self.members.clone();
        // Ranks give up waiting at the deadline, so one that makes no progress for longer is stuck in its own
        // code. A step may take many times the deadline as long as somebody goes on.
        let mut progress = self.watch.progress();
        let grace = self.deadline + self.deadline / 4 + Duration::from_millis(200);
        while !outstanding.is_empty() {
            // Once something failed, the others answer at once, or are stuck.
            let wait = if errors.is_empty() { grace } else { Duration::from_millis(500).min(grace) };
            match self.replies.recv_timeout(wait) {
                Ok((rank, answer)) => {
                    outstanding.retain(|&r| r != rank);
                    match answer {
                        Ok(answer) => drop(answers.insert(rank, answer)),
                        Err(error) => errors.push((rank, error)),
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let now = self.watch.progress();
                    if now == progress || !errors.is_empty() {
                        break;
                    }
                    progress = now;
                }
            }
        }
        if errors.is_empty() && outstanding.is_empty() {
            return Ok(answers.into_values().flatten().collect());
        }
        Err(self.close(errors, &outstanding))
    }

    /// Closes the pipeline and names the first cause.
    fn close(&mut self, mut errors: Vec<(usize, ExecuteError)>, outstanding: &[usize]) -> PipelineError {
        // A rank's own error comes before what others say of it.
        errors.sort_by_key(|(_, error)| error.is_secondary());
        let own = errors.first().filter(|(_, error)| !error.is_secondary()).cloned();
        let stuck = outstanding.first().map(|&rank| (rank, self.watch.activity(rank)));
        let error = match (own, stuck, errors.into_iter().next()) {
            (Some((_, error)), ..) => PipelineError::Rank(error),
            (None, Some((rank, activity)), _) => {
                PipelineError::Silent { rank, seconds: self.deadline.as_secs_f64(), activity }
            }
            (None, None, Some((_, error))) => PipelineError::Rank(error),
            (None, None, None) => {
                PipelineError::Silent { rank: 0, seconds: self.deadline.as_secs_f64(), activity: Activity::Idle }
            }
        };
        let rank = match &error {
            PipelineError::Silent { rank, .. } => *rank,
            _ => self.watch.failure().map_or(0, |failure| failure.rank),
        };
        let failure = Failure { rank, message: error.to_string() };
        self.watch.abort(failure.clone());
        self.closed = Some(failure);
        error
    }
}
