//! What may be handed to an operation, and what comes back.

use bytes::Bytes;

use super::owned::Buffer;
use super::parts::Parts;
use super::pool::Pool;
use super::raw::Raw;
use crate::element::Element;
use std::sync::Arc;

mod sealed {
    pub trait Sealed {}
}
use sealed::Sealed;

/// Something that can be sent: `Vec<T>`, `Box<[T]>`, [`Buffer<T>`] and [`Bytes`] by value without a copy; `&[T]`,
/// `&[T; N]`, `&Vec<T>`, `&Box<[T]>` and `&Buffer<T>` by one staged copy, as large as the original.
///
/// A function that is generic over it can be spawned, and its errors be boxed, if the buffer is `'static`: futures and what they
/// give back are `Send`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be sent",
    label = "not a buffer of elements",
    note = "pass a Vec<T>, Box<[T]>, Buffer<T> or Bytes by value (zero-copy), or a &[T] (staged copy)",
    note = "an array that gets a result is lent by its name, `&mut loss`: in `&mut [loss]` the result would be lost"
)]
pub trait Lend: Sealed + Sized {
    /// Element type.
    type Element: Element;
    /// What the operation gives back: the buffer itself, or nothing for a borrow.
    type Returned: Send + Sync + 'static;
    #[doc(hidden)]
    type Guard: Guard<Returned = Self::Returned> + Send + Sync + Unpin;
    #[doc(hidden)]
    fn lend(self, staging: &Staging) -> (Lent, Self::Guard);
}

/// Something that an operation can write its result into: `Vec<T>`, `Box<[T]>` and [`Buffer<T>`] by value without a
/// copy; `&mut [T]`, `&mut [T; N]`, `&mut Vec<T>`, `&mut Box<[T]>` and `&mut Buffer<T>` by one staged copy, as large
/// as the original.
///
/// A `slice: &mut [T]` is moved like any value: to hand in the same one again, write `&mut *slice`. After an error it is as it was:
/// the operation has worked on the copy.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't receive a result",
    label = "not a writable buffer of elements",
    note = "pass a Vec<T>, Box<[T]> or Buffer<T> by value (zero-copy), or a &mut [T] (staged copy)",
    note = "a Buffer<T> is passed by value and comes back from the operation; in loops pass `&mut *slice`"
)]
pub trait LendMut: Lend {}

/// Where copies of borrowed memory are kept.
#[doc(hidden)]
#[derive(Debug)]
pub struct Staging(pub(crate) Arc<Pool>);

/// Memory that an operation works on.
#[doc(hidden)]
#[derive(Debug)]
pub struct Lent(pub(crate) Parts);

/// What the future keeps to give the buffer back.
#[doc(hidden)]
pub trait Guard {
    /// What is given back.
    type Returned;
    /// The result arrived in `lent`.
    fn give_back(self, lent: Lent) -> Self::Returned;
    /// The operation failed; contents are undefined.
    fn give_up(self, lent: Lent) -> Self::Returned
    where
        Self: Sized;
}

macro_rules! owned {
    ($($type:ty, $guard:ident, $into:expr, $from:expr);+ $(;)?) => {$(
        impl<T: Element> Sealed for $type {}
        impl<T: Element> Lend for $type {
            type Element = T;
            type Returned = Self;
            type Guard = $guard<T>;
            fn lend(self, _: &Staging) -> (Lent, Self::Guard) {
                (Lent($into(self)), $guard(std::marker::PhantomData))
            }
        }
        impl<T: Element> LendMut for $type {}

        #[doc(hidden)]
        #[derive(Debug)]
        pub struct $guard<T>(std::marker::PhantomData<T>);
        impl<T: Element> Guard for $guard<T> {
            type Returned = $type;
            fn give_back(self, lent: Lent) -> $type {
                $from(lent.0)
            }
            fn give_up(self, lent: Lent) -> $type {
                $from(lent.0)
            }
        }
    )+};
}

owned! {
    Vec<T>, OwnedVec, Parts::from_vec, Parts::into_vec;
    Box<[T]>, OwnedBox, |this: Box<[T]>| Parts::from_vec(this.into_vec()), |parts: Parts| parts.into_vec().into_boxed_slice();
    Buffer<T>, OwnedBuffer, Buffer::into_parts, Buffer::from_parts;
}

impl Sealed for Bytes {}
impl Lend for Bytes {
    type Element = u8;
    type Returned = Bytes;
    type Guard = OwnedBytes;
    fn lend(self, _: &Staging) -> (Lent, OwnedBytes) {
        (Lent(Parts::from_bytes(self.clone())), OwnedBytes(self))
    }
}

#[doc(hidden)]
#[derive(Debug)]
pub struct OwnedBytes(Bytes);
impl Guard for OwnedBytes {
    type Returned = Bytes;
    fn give_back(self, _: Lent) -> Bytes {
        self.0
    }
    fn give_up(self, _: Lent) -> Bytes {
        self.0
    }
}

fn stage<T: Element>(elements: &[T], staging: &Staging) -> Lent {
    let bytes: &[u8] = bytemuck::cast_slice(elements);
    let block = staging.0.stage(bytes.len());
    block.raw().sub(0..bytes.len()).copy_from_slice(bytes);
    Lent(Parts::from_block(block, bytes.len()))
}

impl<T: Element> Sealed for &[T] {}
impl<T: Element> Lend for &[T] {
    type Element = T;
    type Returned = ();
    type Guard = Read;
    fn lend(self, staging: &Staging) -> (Lent, Read) {
        (stage(self, staging), Read)
    }
}

impl<T: Element, const N: usize> Sealed for &[T; N] {}
impl<T: Element, const N: usize> Lend for &[T; N] {
    type Element = T;
    type Returned = ();
    type Guard = Read;
    fn lend(self, staging: &Staging) -> (Lent, Read) {
        self.as_slice().lend(staging)
    }
}

#[doc(hidden)]
#[derive(Debug)]
pub struct Read;
impl Guard for Read {
    type Returned = ();
    fn give_back(self, _: Lent) {}
    fn give_up(self, _: Lent) {}
}

/// What a barrier hands in: no data of the caller's.
#[derive(Debug)]
pub struct Nothing(());

impl Nothing {
    pub(crate) const fn new() -> Self {
        Nothing(())
    }
}

impl Sealed for Nothing {}
impl Lend for Nothing {
    type Element = u8;
    type Returned = ();
    type Guard = Read;
    fn lend(self, staging: &Staging) -> (Lent, Read) {
        (stage(&[0u8], staging), Read)
    }
}

/// What a look at messages hands in: no memory at all.
#[doc(hidden)]
#[derive(Debug)]
pub struct Looking;

impl Sealed for Looking {}
impl Lend for Looking {
    type Element = u8;
    type Returned = ();
    type Guard = Read;
    fn lend(self, _: &Staging) -> (Lent, Read) {
        (Lent(Parts::NONE), Read)
    }
}

impl<T: Element> Sealed for &mut [T] {}
impl<'a, T: Element> Lend for &'a mut [T] {
    type Element = T;
    type Returned = ();
    type Guard = Write<'a, T>;
    fn lend(self, staging: &Staging) -> (Lent, Write<'a, T>) {
        (stage(self, staging), Write(self))
    }
}
impl<T: Element> LendMut for &mut [T] {}

impl<T: Element, const N: usize> Sealed for &mut [T; N] {}
impl<'a, T: Element, const N: usize> Lend for &'a mut [T; N] {
    type Element = T;
    type Returned = ();
    type Guard = Write<'a, T>;
    fn lend(self, staging: &Staging) -> (Lent, Write<'a, T>) {
        self.as_mut_slice().lend(staging)
    }
}
impl<T: Element, const N: usize> LendMut for &mut [T; N] {}

/// What holds a slice is lent by reference as that slice.
macro_rules! as_slices {
    ($($type:ty),+ $(,)?) => {$(
        impl<T: Element> Sealed for &$type {}
        impl<T: Element> Lend for &$type {
            type Element = T;
            type Returned = ();
            type Guard = Read;
            fn lend(self, staging: &Staging) -> (Lent, Read) {
                let elements: &[T] = self;
                elements.lend(staging)
            }
        }

        impl<T: Element> Sealed for &mut $type {}
        impl<'a, T: Element> Lend for &'a mut $type {
            type Element = T;
            type Returned = ();
            type Guard = Write<'a, T>;
            fn lend(self, staging: &Staging) -> (Lent, Write<'a, T>) {
                let elements: &mut [T] = self;
                elements.lend(staging)
            }
        }
        impl<T: Element> LendMut for &mut $type {}
    )+};
}

as_slices!(Vec<T>, Box<[T]>, Buffer<T>);

/// Two buffers: one that is read and one for the result, which come back together.
///
/// What operations whose names end in `_into` are given, and what their futures give back.
#[derive(Debug)]
pub struct Pair<I, O> {
    input: I,
    output: O,
}

impl<I, O> Pair<I, O> {
    pub(crate) const fn new(input: I, output: O) -> Self {
        Pair { input, output }
    }
}

impl<I, O> Sealed for Pair<I, O> {}
impl<I: Lend, O: LendMut<Element = I::Element>> Lend for Pair<I, O> {
    type Element = I::Element;
    type Returned = (I::Returned, O::Returned);
    type Guard = PairGuard<I::Guard, O::Guard>;
    fn lend(self, staging: &Staging) -> (Lent, Self::Guard) {
        let ((input, of_input), (output, of_output)) = (self.input.lend(staging), self.output.lend(staging));
        (Lent(output.0.with_input(input.0)), PairGuard(of_input, of_output))
    }
}

#[doc(hidden)]
#[derive(Debug)]
pub struct PairGuard<I, O>(I, O);
impl<I: Guard, O: Guard> Guard for PairGuard<I, O> {
    type Returned = (I::Returned, O::Returned);
    fn give_back(self, mut lent: Lent) -> Self::Returned {
        let input = Lent(lent.0.take_input());
        (self.0.give_back(input), self.1.give_back(lent))
    }
    fn give_up(self, mut lent: Lent) -> Self::Returned {
        let input = Lent(lent.0.take_input());
        (self.0.give_up(input), self.1.give_up(lent))
    }
}

/// The same of a slice that is only read.
#[derive(Debug)]
pub(crate) struct BlockedInput<'a, T>(pub(crate) &'a [T]);

impl<T: Element> Sealed for BlockedInput<'_, T> {}
impl<T: Element> Lend for BlockedInput<'_, T> {
    type Element = T;
    type Returned = ();
    type Guard = Read;
    fn lend(self, _: &Staging) -> (Lent, Read) {
        let bytes: &[u8] = bytemuck::cast_slice(self.0);
        // The pointer is `mut` by type only: nothing writes to the input of an operation.
        (Lent(Parts::lent(Raw::new(bytes.as_ptr().cast_mut(), bytes.len()))), Read)
    }
}

/// A slice whose owner blocks until the operation is over: no copy is needed. Only ever waited for, never polled, so
/// that it can't be forgotten half way.
#[derive(Debug)]
pub(crate) struct Blocked<'a, T>(pub(crate) &'a mut [T]);

impl<T: Element> Sealed for Blocked<'_, T> {}
impl<T: Element> Lend for Blocked<'_, T> {
    type Element = T;
    type Returned = ();
    type Guard = Read;
    fn lend(self, _: &Staging) -> (Lent, Read) {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(self.0);
        (Lent(Parts::lent(Raw::new(bytes.as_mut_ptr(), bytes.len()))), Read)
    }
}
impl<T: Element> LendMut for Blocked<'_, T> {}

#[doc(hidden)]
#[derive(Debug)]
pub struct Write<'a, T>(&'a mut [T]);
impl<T: Element> Guard for Write<'_, T> {
    type Returned = ();
    fn give_back(self, lent: Lent) {
        bytemuck::cast_slice_mut(self.0).copy_from_slice(lent.0.raw().bytes_ref());
    }
    fn give_up(self, _: Lent) {}
}
