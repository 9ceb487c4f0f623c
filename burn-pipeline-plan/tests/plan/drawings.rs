//! The drawing in the header of each schedule's file equals the plan that the schedule builds.

use burn_pipeline_plan::schedule::{Size, all};
use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

/// The texts of the folder of schedules: of each file, and of each folder with its files joined, `mod.rs` first.
fn sources() -> Vec<String> {
    let schedules = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/schedule");
    let text = |path: PathBuf| match path.is_file() {
        true => read_to_string(path).unwrap(),
        false => {
            let mut files = entries(&path);
            files.sort_by_key(|file| !file.ends_with("mod.rs"));
            files.into_iter().map(|file| read_to_string(file).unwrap()).collect()
        }
    };
    entries(&schedules).into_iter().map(text).collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// The lines between the first ```` ```text ```` of a header and its end.
fn drawing(file: &str) -> Vec<&str> {
    let lines = file.lines().map(|line| line.trim_start_matches("//!").trim());
    lines.skip_while(|line| *line != "```text").skip(1).take_while(|line| *line != "```").collect()
}

/// The size that a drawing's first line names: `p=2 v=2 m=4`.
fn size(line: &str) -> Size {
    let number = |key: &str| {
        let word = line.split([' ', ',']).find_map(|word| word.strip_prefix(key));
        word.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("no {key} in {line:?}"))
    };
    Size::new(number("p="), number("m=")).with_chunks(number("v="))
}

#[test]
fn every_schedule_has_a_drawing_that_is_true() {
    let sources = sources();
    for schedule in all() {
        let (name, quoted) = (schedule.info().name, format!("\"{}\"", schedule.info().name));
        let implements = |text: &str| text.contains("\nimpl Schedule for ") || text.contains(" SCHEDULE: Fixed = ");
        let own = |text: &&String| implements(text) && text.contains(&quoted);
        let own: Vec<&String> = sources.iter().filter(own).collect();
        let [file] = own[..] else { panic!("{} files implement {name}", own.len()) };
        let drawing = drawing(file);
        let plan = schedule.build(size(drawing[0])).unwrap();
        assert_eq!(drawing.len(), 1 + plan.ranks(), "{name}: one line a rank");
        for (rank, line) in drawing[1..].iter().enumerate() {
            let drawn: Vec<&str> = line.strip_prefix(&format!("rank {rank}:")).unwrap().split_whitespace().collect();
            let built = plan.row(rank).iter().map(|a| a.to_string().replace("OVERLAP_F_B", ""));
            assert_eq!(drawn, built.collect::<Vec<_>>(), "{name}, rank {rank}");
        }
    }
}
