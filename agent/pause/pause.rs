//! The pause program: holds a pod's namespaces, reaps orphaned processes and exits at once on SIGINT or SIGTERM.
//!
//! A static program without the standard library or libc, so that its image is a few kilobytes and has no other
//! contents. `build.rs` compiles it for the target of Windlass itself.

#![no_std]
#![no_main]

use core::arch::asm;

const SIGINT: u64 = 2;
const SIGTERM: u64 = 15;
const SIGCHLD: u64 = 17;
const SIG_BLOCK: usize = 0;
const WNOHANG: usize = 1;

#[cfg(target_arch = "x86_64")]
mod number {
    pub const RT_SIGPROCMASK: usize = 14;
    pub const RT_SIGTIMEDWAIT: usize = 128;
    pub const WAIT4: usize = 61;
    pub const EXIT_GROUP: usize = 231;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub const RT_SIGPROCMASK: usize = 135;
    pub const RT_SIGTIMEDWAIT: usize = 137;
    pub const WAIT4: usize = 260;
    pub const EXIT_GROUP: usize = 94;
}

#[cfg(target_arch = "x86_64")]
fn call(n: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result: isize;
    // SAFETY: the kernel's calling convention; the calls used here touch no memory but what their arguments name.
    unsafe {
        asm!("syscall", inlateout("rax") n as isize => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

#[cfg(target_arch = "aarch64")]
fn call(n: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result: isize;
    // SAFETY: as above.
    unsafe {
        asm!("svc 0", in("x8") n, inlateout("x0") a as isize => result, in("x1") b, in("x2") c, in("x3") d, options(nostack));
    }
    result
}

// SAFETY: nothing else is linked in, so that no other symbol can have this name.
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    let set: u64 = 1 << (SIGINT - 1) | 1 << (SIGTERM - 1) | 1 << (SIGCHLD - 1);
    let set_at = &raw const set as usize;
    // Blocked signals stay pending until they are read, also for PID 1 of a namespace.
    call(number::RT_SIGPROCMASK, SIG_BLOCK, set_at, 0, size_of::<u64>());
    loop {
        let signal = call(number::RT_SIGTIMEDWAIT, set_at, 0, 0, size_of::<u64>());
        if signal == SIGCHLD as isize {
            while call(number::WAIT4, usize::MAX, 0, WNOHANG, 0) > 0 {}
        } else if signal > 0 {
            call(number::EXIT_GROUP, 0, 0, 0, 0);
        }
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        call(number::EXIT_GROUP, 1, 0, 0, 0);
    }
}
