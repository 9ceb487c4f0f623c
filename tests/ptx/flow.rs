//! Branches that part a warp, loops of different lengths, tables, and threads that end early.

use crate::{equals, equals32};

#[test]
fn loops_end_for_each_thread_on_its_own() {
    let sum = "and.b32 %r4, %r1, 31;\nmov.u32 %r9, 0;\n$L_again:\nsetp.eq.s32 %p1, %r4, 0;\n@%p1 bra $L_end;\n\
                   add.s32 %r9, %r9, %r4;\nsub.s32 %r4, %r4, 1;\nbra.uni $L_again;\n$L_end:\n";
    equals32(sum, |a, _, _| (a & 31) * ((a & 31) + 1) / 2);
}

#[test]
fn both_sides_of_branches_run_and_meet() {
    let body = "setp.lt.u32 %p1, %r1, %r2;\n@%p1 bra $L_less;\nsetp.eq.s32 %p2, %r1, %r2;\n@!%p2 bra $L_more;\n\
                mov.u32 %r9, 5;\nbra.uni $L_met;\n$L_more:\nmov.u32 %r9, 7;\nbra.uni $L_met;\n$L_less:\n\
                mov.u32 %r9, 11;\n$L_met:\nactivemask.b32 %r4;\nadd.s32 %r9, %r9, %r4;";
    let of = |order: std::cmp::Ordering| match order {
        std::cmp::Ordering::Less => 11,
        std::cmp::Ordering::Equal => 5,
        std::cmp::Ordering::Greater => 7,
    };
    // The mask of all lanes is -1.
    equals32(body, |a, b, _| of(a.cmp(&b)) - 1);
}

#[test]
fn a_table_of_branches() {
    let body = "and.b32 %r4, %r1, 1;\nand.b32 %r5, %r2, 1;\nadd.s32 %r4, %r4, %r5;\n\
                $L_table: .branchtargets $L_0, $L_1, $L_2;\nbrx.idx %r4, $L_table;\n$L_0:\nmov.u32 %r9, 3;\n\
                bra.uni $L_met;\n$L_1:\nmov.u32 %r9, 4;\nbra.uni $L_met;\n$L_2:\nmov.u32 %r9, 5;\n$L_met:\n";
    equals32(body, |a, b, _| 3 + (a & 1) + (b & 1));
}

#[test]
fn an_instruction_under_a_guard_runs_only_where_it_holds() {
    let body = "setp.ne.s64 %p1, %rd1, 0;\nmov.b64 %rd9, 1;\n@%p1 mov.b64 %rd9, %rd1;\n@!%p1 add.s64 %rd9, %rd9, 1;";
    equals(body, |a, _, _| if a == 0 { 2 } else { a });
}
