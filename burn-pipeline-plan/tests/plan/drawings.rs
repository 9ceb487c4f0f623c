//! The drawing in the header of each schedule's file equals the plan that the schedule builds.

use burn_pipeline_plan::schedule::{Size, all, by_name};

/// Each schedule's file.
const FILES: [(&str, &str); 18] = [
    ("ForwardOnly", include_str!("../../src/schedule/forward_only.rs")),
    ("GPipe", include_str!("../../src/schedule/gpipe.rs")),
    ("1F1B", include_str!("../../src/schedule/one_f_one_b.rs")),
    ("Interleaved1F1B", include_str!("../../src/schedule/interleaved.rs")),
    ("LoopedBFS", include_str!("../../src/schedule/looped_bfs.rs")),
    ("InterleavedZeroBubble", include_str!("../../src/schedule/interleaved_zero_bubble.rs")),
    ("ZBVZeroBubble", include_str!("../../src/schedule/zbv.rs")),
    ("ZBH1", include_str!("../../src/schedule/zb_h1.rs")),
    ("ZBH2", include_str!("../../src/schedule/zb_h2.rs")),
    ("ZBAuto", include_str!("../../src/schedule/zb_auto/mod.rs")),
    ("VHalf", include_str!("../../src/schedule/v_half.rs")),
    ("VMin", include_str!("../../src/schedule/v_min.rs")),
    ("1F1B-V", include_str!("../../src/schedule/one_f_one_b_v.rs")),
    ("DualPipe", include_str!("../../src/schedule/dual_pipe.rs")),
    ("DualPipeV", include_str!("../../src/schedule/dual_pipe_v.rs")),
    ("Chimera", include_str!("../../src/schedule/chimera.rs")),
    ("GIS", include_str!("../../src/schedule/gis.rs")),
    ("GISH", include_str!("../../src/schedule/gis_h.rs")),
];

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
    assert_eq!(FILES.len(), all().len(), "a schedule has no file here");
    for (name, file) in FILES {
        let drawing = drawing(file);
        let plan = by_name(name).unwrap().build(size(drawing[0])).unwrap();
        assert_eq!(drawing.len(), 1 + plan.ranks(), "{name}: one line a rank");
        for (rank, line) in drawing[1..].iter().enumerate() {
            let drawn: Vec<&str> = line.strip_prefix(&format!("rank {rank}:")).unwrap().split_whitespace().collect();
            let built = plan.row(rank).iter().map(|a| a.to_string().replace("OVERLAP_F_B", ""));
            assert_eq!(drawn, built.collect::<Vec<_>>(), "{name}, rank {rank}");
        }
    }
}
