//! The instructions that compute within each lane.

use super::code::{Compare, Float, Inst, Kind, Op, Slot, Width};
use super::convert::{compare, convert, extend};
use super::integers::{self, Doubles, Singles};
use super::lanes::each;
use super::module::Kernel;
use super::warp::Warp;
use super::{bits, floats, math};

impl Warp {
    pub(super) fn compute(&mut self, kernel: &Kernel, inst: Inst, lanes: u32) {
        let Inst { op, d, a, b, c, .. } = inst;
        match op {
            Op::Int1(..) | Op::Int2 { .. } | Op::MulAdd(_) | Op::MulWide { .. } => self.integers(inst, lanes),
            Op::Float1(..) | Op::Float2(..) | Op::MulAddFloat(_) | Op::Saturate(_) | Op::Math(..) => {
                self.floats(inst, lanes);
            }
            Op::Set(by, kind) => self.set_predicate(by, kind, inst, lanes),
            Op::Move(Width::W64) => self.put_double(d, &self.doubles[a as usize].clone(), lanes),
            Op::Move(_) => self.put(d, &self.singles[a as usize].clone(), lanes),
            Op::Select(width) => {
                let by = self.predicates[c as usize];
                self.map(lanes, d, width, |warp, lane| warp.get(width, if by >> lane & 1 == 1 { a } else { b }, lane));
            }
            Op::MovePredicate => self.put_predicate(d, self.predicates[a as usize], lanes),
            Op::NotPredicate => self.put_predicate(d, !self.predicates[a as usize], lanes),
            Op::Predicates(op) => {
                let [a, b] = [a, b].map(|slot| self.predicates[slot as usize]);
                let result = integers::two_singles(op, Width::W32, false, &[a; 32], &[b; 32])[0];
                self.put_predicate(d, result, lanes);
            }
            Op::Convert(conversion) => self
                .map(lanes, d, conversion.into, |warp, lane| convert(conversion, warp.get(conversion.out_of, a, lane))),
            _ => self.bits(kernel, inst, lanes),
        }
    }

    fn integers(&mut self, Inst { op, d, a, b, c, .. }: Inst, lanes: u32) {
        match op {
            Op::Int1(op, width) => {
                use super::code::Int1::{CountOnes, LeadingZeros};
                let into = if matches!(op, CountOnes | LeadingZeros) { Width::W32 } else { width };
                self.map(lanes, d, into, |warp, lane| integers::one(op, width, warp.get(width, a, lane)));
            }
            Op::Int2 { op, width: Width::W64, signed } => {
                use super::code::Int2::{ShiftLeft, ShiftRight};
                let by = match op {
                    ShiftLeft | ShiftRight => self.singles[b as usize].map(u64::from),
                    _ => self.doubles[b as usize],
                };
                let result = integers::two_doubles(op, signed, &self.doubles[a as usize], &by);
                self.put_double(d, &result, lanes);
            }
            Op::Int2 { op, width, signed } => {
                let result = integers::two_singles(op, width, signed, self.single(a), self.single(b));
                self.put(d, &result, lanes);
            }
            Op::MulAdd(width) => self.map(lanes, d, width, |warp, lane| {
                let [a, b, c] = [a, b, c].map(|slot| warp.get(width, slot, lane));
                a.wrapping_mul(b).wrapping_add(c)
            }),
            Op::MulWide { from, signed, adds } => {
                let into = if from == Width::W16 { Width::W32 } else { Width::W64 };
                self.map(lanes, d, into, |warp, lane| {
                    let of = |slot| extend(warp.get(from, slot, lane), from.bits() as u8, signed) as i64;
                    let product = of(a).wrapping_mul(of(b)) as u64;
                    product.wrapping_add(if adds { warp.get(into, c, lane) } else { 0 })
                });
            }
            _ => unreachable!("an operation of integers"),
        }
    }

    fn single(&self, slot: Slot) -> &Singles {
        &self.singles[slot as usize]
    }

    /// Writes a function of each lane.
    fn map(&mut self, lanes: u32, d: Slot, width: Width, f: impl Fn(&Self, usize) -> u64) {
        each(lanes).for_each(|lane| {
            let value = f(self, lane);
            self.set(width, d, lane, value);
        });
    }

    fn floats(&mut self, Inst { op, d, a, b, c, .. }: Inst, lanes: u32) {
        let float = match op {
            Op::Float1(_, float) | Op::Float2(_, float) | Op::MulAddFloat(float) | Op::Saturate(float) => float,
            Op::Math(_, float) => float,
            _ => unreachable!("an operation of floats"),
        };
        if float == Float::F64 {
            let [a, b, c] = [a, b, c].map(|slot| self.doubles.get(slot as usize).copied().unwrap_or([0; 32]));
            let result = of_doubles(op, &a, &b, &c);
            return self.put_double(d, &result, lanes);
        }
        let result = match op {
            Op::Float1(op, _) => floats::one(op, float, self.single(a)),
            Op::Float2(op, _) => floats::two(op, float, self.single(a), self.single(b)),
            Op::MulAddFloat(_) => floats::multiply_and_add(float, self.single(a), self.single(b), self.single(c)),
            Op::Saturate(_) => floats::saturate(float, self.single(a)),
            Op::Math(math, _) => std::array::from_fn(|lane| {
                let [a, b] = [a, b].map(|slot| f64::from(f32::from_bits(self.single(slot)[lane])));
                floats::bits(float, math::of(math, a, b)) as u32
            }),
            _ => unreachable!("an operation of floats"),
        };
        self.put(d, &result, lanes);
    }

    fn set_predicate(&mut self, by: Compare, kind: Kind, Inst { d, a, b, .. }: Inst, lanes: u32) {
        let width = kind.width();
        let result = each(lanes).fold(0, |result, lane| {
            let holds = compare(by, kind, self.get(width, a, lane), self.get(width, b, lane));
            result | u32::from(holds) << lane
        });
        self.put_predicate(d, result, lanes);
    }

    fn bits(&mut self, kernel: &Kernel, Inst { op, d, a, b, c, .. }: Inst, lanes: u32) {
        let list = |start: Slot, place: usize| kernel.lists[start as usize + place];
        match op {
            Op::Pack { part, into, count } => self.map(lanes, d, into, |warp, lane| {
                let of = |place: usize| warp.get(part, list(a, place), lane) << (place as u32 * part.bits());
                (0..usize::from(count)).fold(0, |whole, place| whole | of(place))
            }),
            Op::Unpack { part, from, count } => each(lanes).for_each(|lane| {
                let whole = self.get(from, a, lane);
                for place in 0..usize::from(count) {
                    self.set(part, list(d, place), lane, whole >> (place as u32 * part.bits()));
                }
            }),
            Op::Permute => self.three(lanes, [d, a, b, c], bits::permute),
            Op::Funnel { left, clamps } => {
                self.three(lanes, [d, a, b, c], |a, b, c| bits::funnel(left, clamps, a, b, c));
            }
            Op::Logic3(table) => self.three(lanes, [d, a, b, c], |a, b, c| bits::logic(table, a, b, c)),
            Op::Extract { width, signed } => self.map(lanes, d, width, |warp, lane| {
                bits::extract(width, signed, warp.get(width, a, lane), warp.single(b)[lane], warp.single(c)[lane])
            }),
            Op::Insert(width) => self.map(lanes, d, width, |warp, lane| {
                let [value, base] = [a, b].map(|slot| warp.get(width, slot, lane));
                let [start, length] = [0, 1].map(|place| warp.single(list(c, place))[lane]);
                bits::insert(width, value, base, start, length)
            }),
            _ => unreachable!("an instruction without a case: {op:?}"),
        }
    }

    fn three(&mut self, lanes: u32, [d, a, b, c]: [Slot; 4], f: impl Fn(u32, u32, u32) -> u32) {
        let result = std::array::from_fn(|lane| f(self.single(a)[lane], self.single(b)[lane], self.single(c)[lane]));
        self.put(d, &result, lanes);
    }
}

fn of_doubles(op: Op, a: &Doubles, b: &Doubles, c: &Doubles) -> Doubles {
    match op {
        Op::Float1(op, _) => floats::doubles([a], |[a]| floats::one_double(op, a)),
        Op::Float2(op, _) => floats::doubles([a, b], |[a, b]| floats::two_doubles(op, a, b)),
        Op::MulAddFloat(_) => floats::doubles([a, b, c], |[a, b, c]| a.mul_add(b, c)),
        Op::Math(math, _) => floats::doubles([a, b], |[a, b]| math::of(math, a, b)),
        _ => unreachable!("decoding refuses the rest"),
    }
}
