//! Where the lanes that a branch parts meet again: at its immediate post-dominator, the first instruction that all
//! paths from the branch to the kernel's end have in common. (Cooper, Harvey and Kennedy 2001, on the reversed
//! graph of instructions.)

use super::code::{ALWAYS, Inst, Op, Slot};

/// For each instruction, the one that comes after it on every path; the number of instructions for none.
pub fn meets(code: &[Inst], lists: &[Slot]) -> Vec<u32> {
    let end = code.len();
    let next: Vec<Vec<usize>> = (0..end).map(|place| successors(code, lists, place)).collect();
    let mut before = vec![Vec::new(); end + 1];
    next.iter().enumerate().for_each(|(place, to)| to.iter().for_each(|&to| before[to].push(place)));
    let order = from_the_end(&before);
    let mut number = vec![usize::MAX; end + 1];
    order.iter().enumerate().for_each(|(at, &place)| number[place] = at);
    let mut meets = vec![usize::MAX; end + 1];
    meets[end] = end;
    let mut changed = true;
    while changed {
        changed = false;
        for &place in &order[1..] {
            let known = next[place].iter().copied().filter(|&to| meets[to] != usize::MAX);
            let found = known.reduce(|a, b| common(a, b, &meets, &number)).unwrap_or(end);
            changed |= std::mem::replace(&mut meets[place], found) != found;
        }
    }
    // Lanes that never leave a loop meet nowhere.
    meets[..end].iter().map(|&place| place.min(end) as u32).collect()
}

fn successors(code: &[Inst], lists: &[Slot], place: usize) -> Vec<usize> {
    let Inst { op, guard, b, .. } = code[place];
    let mut to = match op {
        Op::Branch(target) => vec![target as usize],
        Op::BranchTable { count } => {
            lists[b as usize..(b + count) as usize].iter().map(|&target| target as usize).collect()
        }
        // Lanes that leave under a guard meet nobody.
        Op::Exit | Op::Trap if guard == ALWAYS => vec![code.len()],
        _ => return vec![place + 1],
    };
    if guard != ALWAYS {
        to.push(place + 1);
    }
    to
}

/// The places in reverse post-order of the reversed graph, the end first.
fn from_the_end(before: &[Vec<usize>]) -> Vec<usize> {
    let end = before.len() - 1;
    let (mut order, mut seen, mut open) = (Vec::new(), vec![false; end + 1], vec![(end, 0)]);
    seen[end] = true;
    while let Some((place, taken)) = open.last_mut() {
        match before[*place].get(*taken) {
            Some(&other) => {
                *taken += 1;
                if !std::mem::replace(&mut seen[other], true) {
                    open.push((other, 0));
                }
            }
            None => {
                order.push(*place);
                open.pop();
            }
        }
    }
    order.reverse();
    order
}

fn common(mut a: usize, mut b: usize, meets: &[usize], number: &[usize]) -> usize {
    while a != b {
        if number[a] > number[b] {
            a = meets[a];
        } else {
            b = meets[b];
        }
    }
    a
}
