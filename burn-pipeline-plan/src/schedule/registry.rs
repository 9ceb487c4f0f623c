//! The schedules by name, and the conversion of arguments into a schedule, from a schedule or a name.
//!
//! Case, hyphens, underscores and a leading `Schedule` (PyTorch's class names) are ignored: `ZB-H1`, `zbh1`,
//! `Schedule1F1B` and `_ScheduleForwardOnly` are all found.

use super::forward_only::ForwardOnly;
use super::gis::Gis;
use super::gpipe::GPipe;
use super::interleaved::Interleaved1F1B;
use super::nearest::nearest;
use super::one_f_one_b::OneFOneB;
use super::schedule_trait::{Schedule, ScheduleError};
use super::zb_auto::ZbAuto;
use super::{chimera, dual_pipe, dual_pipe_v, gis_h, interleaved_zero_bubble, looped_bfs};
use super::{one_f_one_b_v, v_half, v_min, zb_h1, zb_h2, zbv};

/// Other names in use, and their schedules.
const ALIASES: [(&str, &str); 7] = [
    ("zb1p", "InterleavedZeroBubble"),
    ("zbv", "ZBVZeroBubble"),
    ("interleaved", "Interleaved1F1B"),
    ("vpp", "Interleaved1F1B"),
    ("bfs", "LoopedBFS"),
    ("onefoneb", "1F1B"),
    ("zerobubbleauto", "ZBAuto"),
];

/// Every schedule of this crate, with its default options.
pub fn all() -> Vec<Box<dyn Schedule>> {
    vec![
        Box::new(ForwardOnly),
        Box::new(GPipe),
        Box::new(OneFOneB),
        Box::new(Interleaved1F1B::default()),
        Box::new(looped_bfs::SCHEDULE),
        Box::new(interleaved_zero_bubble::SCHEDULE),
        Box::new(zbv::SCHEDULE),
        Box::new(zb_h1::SCHEDULE),
        Box::new(zb_h2::SCHEDULE),
        Box::new(ZbAuto::default()),
        Box::new(v_half::SCHEDULE),
        Box::new(v_min::SCHEDULE),
        Box::new(one_f_one_b_v::SCHEDULE),
        Box::new(dual_pipe::SCHEDULE),
        Box::new(dual_pipe_v::SCHEDULE),
        Box::new(chimera::SCHEDULE),
        Box::new(Gis::default()),
        Box::new(gis_h::SCHEDULE),
    ]
}

/// The schedule of that name, with its default options.
///
/// Case, hyphens and underscores are ignored. PyTorch's class names, its `ZB1P` and Megatron's `VPP` are accepted.
/// `Interleaved1F1B:group=6` and `GIS:group=6` set how many microbatches go through a chunk before the next chunk
/// starts.
///
/// # Errors
/// Returns [`ScheduleError::UnknownName`] for an unknown name, with the known names and the nearest one, or if the
/// schedule does not have the option after the colon.
///
/// # Example
/// ```
/// use burn_pipeline_plan::schedule::{by_name, Size};
///
/// assert_eq!(by_name("vpp:group=6")?.build(Size::new(4, 12).with_chunks(2))?.row(0)[6].to_string(), "4F0");
/// let plan = by_name("1f1b")?.build(Size::new(2, 3))?;
/// let row: Vec<String> = plan.row(1).iter().map(|a| a.to_string()).collect();
/// assert_eq!(row, ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"]);
/// # Ok::<(), burn_pipeline_plan::schedule::ScheduleError>(())
/// ```
pub fn by_name(name: &str) -> Result<Box<dyn Schedule>, ScheduleError> {
    let (wanted, option) = name.split_once(':').map_or((name, None), |(schedule, option)| (schedule, Some(option)));
    let wanted = plain(wanted);
    let wanted = wanted.strip_prefix("schedule").filter(|rest| !rest.is_empty()).unwrap_or(&wanted);
    let wanted = ALIASES.iter().find(|(alias, _)| *alias == wanted).map_or(wanted.to_owned(), |(_, name)| plain(name));
    let schedules = all();
    let known: Vec<&'static str> = schedules.iter().map(|schedule| schedule.info().name).collect();
    let found = schedules.into_iter().find(|schedule| plain(schedule.info().name) == wanted);
    let found = found.and_then(|schedule| option.map_or(Some(schedule), |option| with_option(&wanted, option)));
    found.ok_or_else(|| {
        let spelt = known.iter().map(|&name| (plain(name), name));
        let nearest = nearest(&wanted, spelt.chain(ALIASES.map(|(alias, name)| (alias.to_owned(), name))));
        ScheduleError::UnknownName { name: name.to_owned(), nearest, known }
    })
}

/// The schedule with this normalized name and an option, such as `group=6`.
fn with_option(schedule: &str, option: &str) -> Option<Box<dyn Schedule>> {
    let group = Some(option.trim().strip_prefix("group=")?.parse().ok()?);
    match schedule {
        "interleaved1f1b" => Some(Box::new(Interleaved1F1B { group })),
        "gis" => Some(Box::new(Gis { group, ..Gis::default() })),
        _ => None,
    }
}

/// Normalizes a name: lower case, without hyphens, underscores and surrounding blanks.
fn plain(name: &str) -> String {
    name.trim().chars().filter(|c| !matches!(c, '-' | '_')).map(|c| c.to_ascii_lowercase()).collect()
}

/// A schedule or its name.
///
/// ```
/// use burn_pipeline_plan::schedule::{GPipe, IntoSchedule};
///
/// assert_eq!(GPipe.into_schedule()?.info().name, "GPipe");
/// assert_eq!("zb-v".into_schedule()?.info().name, "ZBVZeroBubble");
/// assert!("2F2B".into_schedule().is_err());
/// # Ok::<(), burn_pipeline_plan::schedule::ScheduleError>(())
/// ```
pub trait IntoSchedule {
    /// Returns the schedule.
    ///
    /// # Errors
    /// Returns [`ScheduleError::UnknownName`] for an unknown name; see [`by_name`].
    fn into_schedule(self) -> Result<Box<dyn Schedule>, ScheduleError>;
}

impl<S: Schedule + 'static> IntoSchedule for S {
    fn into_schedule(self) -> Result<Box<dyn Schedule>, ScheduleError> {
        Ok(Box::new(self))
    }
}

impl IntoSchedule for Box<dyn Schedule> {
    fn into_schedule(self) -> Result<Box<dyn Schedule>, ScheduleError> {
        Ok(self)
    }
}

impl IntoSchedule for &str {
    fn into_schedule(self) -> Result<Box<dyn Schedule>, ScheduleError> {
        by_name(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Size;

    #[test]
    fn every_schedule_is_found_by_its_own_name_in_any_case() {
        for schedule in all() {
            let name = schedule.info().name;
            assert_eq!(by_name(name).unwrap().info().name, name);
            assert_eq!(by_name(&name.to_uppercase()).unwrap().info().name, name);
            assert_eq!(by_name(&format!("Schedule{}", name.to_lowercase())).unwrap().info().name, name);
        }
    }

    #[test]
    fn other_names_in_use_are_understood() {
        for (alias, name) in [
            ("ZB1P", "InterleavedZeroBubble"),
            ("VPP", "Interleaved1F1B"),
            ("ZB-V", "ZBVZeroBubble"),
            ("ZB-H1", "ZBH1"),
            ("v_half", "VHalf"),
        ] {
            assert_eq!(by_name(alias).unwrap().info().name, name);
        }
        assert_eq!(by_name("_ScheduleForwardOnly").unwrap().info().name, "ForwardOnly");
    }

    #[test]
    fn the_size_of_groups_is_part_of_a_name() {
        let size = Size::new(4, 12).with_chunks(2);
        let rows = |schedule: &dyn Schedule| schedule.build(size).unwrap().rows().to_vec();
        let group = Some(6);
        assert_eq!(rows(&*by_name("vpp:group=6").unwrap()), rows(&Interleaved1F1B { group }));
        assert_eq!(rows(&*by_name("GIS:group=6").unwrap()), rows(&Gis { group, ..Gis::default() }));
        assert_ne!(rows(&*by_name("vpp:group=6").unwrap()), rows(&Interleaved1F1B::default()));
        for name in ["1F1B:group=6", "vpp:group=", "vpp:group=six", "vpp:6", "vpp:", "nothing:group=6"] {
            assert!(matches!(by_name(name), Err(ScheduleError::UnknownName { .. })), "{name}");
        }
    }

    #[test]
    fn a_name_that_asks_for_a_choice_is_told_where_choices_are_made() {
        for name in ["auto", " Auto", "best"] {
            let message = by_name(name).unwrap_err().to_string();
            assert!(message.contains("`AutoPipeline`") && message.contains("`burn-pipeline plan`"), "{message}");
        }
        assert!(!by_name("2F2B").unwrap_err().to_string().contains("AutoPipeline"));
    }

    #[test]
    fn a_misspelt_name_is_told_the_nearest() {
        for schedule in all() {
            let name = schedule.info().name;
            let letters: Vec<char> = name.chars().collect();
            // A letter too many, or two swapped: the schedule itself, unless that spells another one as nearly.
            let doubled = format!("{name}{}", letters[letters.len() - 1]);
            let swapped: String = [&letters[..1], &[letters[2], letters[1]], &letters[3..]].concat().iter().collect();
            for misspelt in [doubled, swapped] {
                let Err(ScheduleError::UnknownName { nearest, .. }) = by_name(&misspelt) else { continue };
                assert_eq!(nearest, Some(name), "{misspelt}");
            }
        }
        let nearest = |name: &str| match by_name(name) {
            Err(ScheduleError::UnknownName { nearest, .. }) => nearest,
            _ => panic!("{name} is known"),
        };
        let near = [
            ("GPip", "GPipe"),
            ("inteleaved-1f1b", "Interleaved1F1B"),
            ("zb-h3", "ZBH1"),
            ("dual-piep-v", "DualPipeV"),
        ];
        assert_eq!(near.map(|(name, _)| nearest(name)), near.map(|(_, schedule)| Some(schedule)));
        assert_eq!(["2F2B", "", "PipelineScheduleMulti", "pigeon"].map(nearest), [None; 4]);
        let message = by_name("1F1C").unwrap_err().to_string();
        assert!(message.contains("no schedule named `1F1C`; the nearest name is `1F1B`; known are"), "{message}");
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        for name in ["", "schedule", "PipelineScheduleMulti", "2F2B"] {
            let message = by_name(name).unwrap_err().to_string();
            assert!(message.contains("ForwardOnly, GPipe, 1F1B, Interleaved1F1B"), "{message}");
        }
    }
}
