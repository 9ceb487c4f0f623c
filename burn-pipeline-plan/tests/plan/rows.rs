//! Small plans row by row, as the papers and projects print them.
//!
//! 1F1B to Chimera follow from the papers' rules; ZBV, DualPipeV and interleaved rows are PyTorch's; V-Half and
//! V-Min are those of Sea AI Lab's scheduler for F = B = W; GIS follows PipeOffload's rule. A fused pair is
//! written `(0F3;3B1)` here, without PyTorch's `OVERLAP_F_B`.

use crate::pricing::sized;

fn assert_rows(name: &str, ranks: usize, chunks: usize, microbatches: usize, rows: &str) {
    let plan = sized(name, ranks, chunks, microbatches);
    let expected: Vec<&str> = rows.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(expected.len(), ranks, "{name}: one row a rank");
    for (rank, expected) in expected.into_iter().enumerate() {
        let cells: Vec<String> = plan.row(rank).iter().map(ToString::to_string).collect();
        assert_eq!(cells.join(" ").replace("OVERLAP_F_B", ""), expected, "{name}, rank {rank}");
    }
}

#[test]
fn one_f_one_b_row_by_row() {
    let rows = "
        0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3
        1F0 1F1 1F2 1B0 1F3 1B1 1B2 1B3
        2F0 2F1 2B0 2F2 2B1 2F3 2B2 2B3
        3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3
    ";
    assert_rows("1F1B", 4, 1, 4, rows);
}

#[test]
fn interleaved_1f1b_row_by_row() {
    let rows = "
        0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3
        1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3
    ";
    assert_rows("Interleaved1F1B", 2, 2, 4, rows);
}

#[test]
fn zb_h1_row_by_row() {
    let rows = "
        0F0 0F1 0F2 0F3 0I0 0W0 0I1 0W1 0I2 0W2 0I3 0W3
        1F0 1F1 1F2 1I0 1F3 1I1 1W0 1I2 1W1 1I3 1W2 1W3
        2F0 2F1 2I0 2F2 2I1 2F3 2I2 2W0 2I3 2W1 2W2 2W3
        3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3W0 3W1 3W2 3W3
    ";
    assert_rows("ZBH1", 4, 1, 4, rows);
}

#[test]
fn zb_h2_row_by_row() {
    let rows = "
        0F0 0F1 0F2 0F3 0F4 0F5 0F6 0I0 0W0 0F7 0I1 0W1 0I2 0W2 0I3 0W3 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7
        1F0 1F1 1F2 1F3 1F4 1I0 1F5 1I1 1F6 1I2 1W0 1F7 1I3 1W1 1I4 1W2 1I5 1W3 1I6 1W4 1I7 1W5 1W6 1W7
        2F0 2F1 2F2 2I0 2F3 2I1 2F4 2I2 2F5 2I3 2F6 2I4 2W0 2F7 2I5 2W1 2I6 2W2 2I7 2W3 2W4 2W5 2W6 2W7
        3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3F4 3I4 3F5 3I5 3F6 3I6 3W0 3F7 3I7 3W1 3W2 3W3 3W4 3W5 3W6 3W7
    ";
    assert_rows("ZBH2", 4, 1, 8, rows);
}

#[test]
fn zbv_on_two_ranks_row_by_row() {
    let rows = "
        0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 0W2 0I3 0W3
        1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 1I3 1W2 2W3 1W3
    ";
    assert_rows("ZBVZeroBubble", 2, 2, 4, rows);
}

#[test]
fn zbv_on_four_ranks_row_by_row() {
    let rows = "
        0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7I0 7W0 7F1 7I1 7W1 7F2 7I2 7W2 7F3 7I3 7W3 0F7 0I0 0W0 7F4 7I4 7W4 0I1 0W1 7F5 7I5 7W5 0I2 0W2 7F6 7I6 7W6 0I3 0W3 7F7 7I7 7W7 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7
        1F0 1F1 1F2 1F3 1F4 6F0 1F5 6F1 6I0 6W0 6F2 6I1 6W1 6F3 6I2 6W2 1F6 1I0 1W0 6F4 6I3 6W3 1F7 1I1 1W1 6F5 6I4 6W4 1I2 1W2 6F6 6I5 6W5 1I3 1W3 6F7 6I6 6W6 1I4 6I7 1I5 1W4 1I6 1W5 1I7 1W6 6W7 1W7
        2F0 2F1 2F2 5F0 2F3 5F1 2F4 5F2 5I0 5W0 5F3 5I1 5W1 2F5 2I0 2W0 5F4 5I2 5W2 2F6 2I1 2W1 5F5 5I3 5W3 2F7 2I2 2W2 5F6 5I4 5W4 2I3 2W3 5F7 5I5 5W5 2I4 5I6 2I5 5I7 2I6 2W4 2I7 2W5 5W6 5W7 2W6 2W7
        3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 4I0 4W0 3F4 3I0 3W0 4F4 4I1 4W1 3F5 3I1 3W1 4F5 4I2 4W2 3F6 3I2 3W2 4F6 4I3 4W3 3F7 3I3 3W3 4F7 4I4 4W4 3I4 4I5 3I5 4I6 3I6 4I7 3I7 3W4 4W5 4W6 4W7 3W5 3W6 3W7
    ";
    assert_rows("ZBVZeroBubble", 4, 2, 8, rows);
}

#[test]
fn dual_pipe_row_by_row() {
    let rows = "
        0F0 0F1 0F2 '3F0 '3I0 '3W0 '3F1 (0F3;'3B1) ('3F2;0B0) '3B2 ('3F3;0B1) '3B3 0I2 0W2 0I3 0W3
        1F0 '2F0 1F1 '2F1 1F2 '2B0 ('2F2;1B0) (1F3;'2B1) ('2F3;1B1) '2B2 1B2 '2I3 1I3 '2W3 1W3
        '1F0 2F0 '1F1 2F1 '1F2 2B0 (2F2;'1B0) ('1F3;2B1) (2F3;'1B1) 2B2 '1B2 2I3 '1I3 2W3 '1W3
        '0F0 '0F1 '0F2 3F0 3I0 3W0 3F1 ('0F3;3B1) (3F2;'0B0) 3B2 (3F3;'0B1) 3B3 '0I2 '0W2 '0I3 '0W3
    ";
    assert_rows("DualPipe", 4, 1, 8, rows);
}

#[test]
fn dual_pipe_v_row_by_row() {
    let rows = "
        0F0 0F1 0F2 3F0 3I0 3W0 3F1 (0F3;3B1) (3F2;0B0) 3B2 (3F3;0B1) 3B3 0I2 0W2 0I3 0W3
        1F0 2F0 1F1 2F1 1F2 2B0 (2F2;1B0) (1F3;2B1) (2F3;1B1) 2B2 1B2 2I3 1I3 2W3 1W3
    ";
    assert_rows("DualPipeV", 2, 2, 4, rows);
}

#[test]
fn chimera_row_by_row() {
    let rows = "
        0F0 0F1 '3F0 '3B0 '3F1 '3B1 0B0 0B1
        1F0 '2F0 1F1 '2F1 '2B0 1B0 '2B1 1B1
        '1F0 2F0 '1F1 2F1 2B0 '1B0 2B1 '1B1
        '0F0 '0F1 3F0 3B0 3F1 3B1 '0B0 '0B1
    ";
    assert_rows("Chimera", 4, 1, 4, rows);
}

#[test]
fn gis_row_by_row() {
    let rows = "
        0F0 0F1 2F0 2F1 2I0 2W0 0F2 2I1 2W1 0F3 0I0 0W0 2F2 0I1 0W1 2F3 2I2 2W2 2I3 2W3 0I2 0W2 0I3 0W3
        1F0 1F1 3F0 3I0 3W0 3F1 3I1 3W1 1F2 1I0 1W0 1F3 1I1 1W1 3F2 3I2 3W2 3F3 3I3 3W3 1I2 1W2 1I3 1W3
    ";
    assert_rows("GIS", 2, 2, 4, rows);
}

#[test]
fn v_half_row_by_row() {
    let rows = "
        0F0 0F1 0F2 0F3 7F0 7I0 7W0 7F1 7I1 7W1 7F2 0I0 7I2 7W2 7F3 0W0 0I1 7I3 7W3 0W1 0I2 0W2 0I3 0W3
        1F0 1F1 1F2 1F3 6F0 6F1 6I0 6W0 6F2 6I1 6W1 1I0 1W0 6F3 6I2 6W2 1I1 1W1 6I3 6W3 1I2 1W2 1I3 1W3
        2F0 2F1 2F2 5F0 5F1 5F2 5I0 5W0 2F3 5I1 2I0 5W1 2W0 5F3 2I1 5I2 5W2 2W1 2I2 5I3 5W3 2W2 2I3 2W3
        3F0 4F0 3F1 4F1 3F2 4F2 4I0 4W0 3I0 3W0 3F3 4F3 4I1 4W1 3I1 3W1 4I2 4W2 3I2 3W2 4I3 4W3 3I3 3W3
    ";
    assert_rows("VHalf", 4, 2, 4, rows);
}

#[test]
fn v_min_row_by_row() {
    let rows = "
        0F0 0F1 0F2 7F0 7I0 7W0 7F1 7I1 7W1 0I0 0W0 0F3 7F2 7I2 0I1 7W2 0W1 7F3 7I3 0I2 7W3 0W2 0I3 0W3
        1F0 1F1 6F0 6F1 6I0 6W0 1F2 1I0 6I1 6W1 1W0 6F2 1F3 1I1 6I2 6W2 1W1 6F3 1I2 6I3 6W3 1W2 1I3 1W3
        2F0 2F1 5F0 5F1 5I0 5W0 2F2 2I0 2W0 5I1 5F2 5W1 2I1 2F3 2W1 5I2 5F3 5W2 2I2 2W2 5I3 5W3 2I3 2W3
        3F0 4F0 3F1 4F1 4I0 3I0 4W0 3W0 3F2 4F2 4I1 3I1 4W1 3W1 3F3 4F3 4I2 3I2 4W2 3W2 4I3 3I3 4W3 3W3
    ";
    assert_rows("VMin", 4, 2, 4, rows);
}
