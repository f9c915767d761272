"""The handler of SIGBUS, as machine code: it replaces pages that no longer exist with zeros.

``store.io.guarded_map`` installs it. It must be native, because Python runs its own handlers only
after the instruction that faulted, which never completes. It must exist before numba is imported,
since a process that reads a few messages never imports it. So it is assembled in advance: a test
assembles each source again and compares.

The handler calls nothing but the kernel, so it may run at any instruction of any thread. Its data
begin ``DATA_AT`` bytes after the code, as 64-bit words:

========== ===================================================================================
word       meaning
========== ===================================================================================
0          faults handled by this process
1          the previous handler, called for any other SIGBUS; 0: the default action
2          slots in use
3          the page size
4 to 7     zeros: ``struct sigaction`` of the default action
8, 9, 10   slot 0: start and end of a map, and the address of its last fault, 0 without one
11 …       slot 1, and so on
========== ===================================================================================

A fault in a map replaces its pages from that address to its end with zeros: page by page,
a large file would exceed the number of maps that a process may have.
"""

from __future__ import annotations

from typing import NamedTuple

DATA_AT = 65536
FAULTS, PREVIOUS, SLOTS_USED, PAGE_SIZE, FIRST_SLOT = 0, 1, 2, 3, 8
SLOT_WORDS = 3


class Handler(NamedTuple):
    """The source, and the code that it assembles to."""

    source: str
    code: bytes


_X86_64 = Handler(
    """\
    .intel_syntax noprefix
handler:                             # (rdi: signal, rsi: siginfo, rdx: context)
    lea r11, [rip + handler + 65536]
    cmp dword ptr [rsi + 8], 2       # si_code: BUS_ADRERR
    jne other
    mov rax, [rsi + 16]              # si_addr
    mov rcx, [r11 + 16]
    lea r10, [r11 + 64]
next:
    sub rcx, 1
    jb other
    cmp rax, [r10]
    jb skip
    cmp rax, [r10 + 8]
    jb found
skip:
    add r10, 24
    jmp next
found:
    mov [r10 + 16], rax
    lock inc qword ptr [r11]
    push rdi
    push rsi
    push rdx
    mov rdi, [r11 + 24]
    neg rdi
    and rdi, rax
    mov rsi, [r10 + 8]
    sub rsi, rdi
    mov edx, 1                       # PROT_READ
    mov r10d, 0x4032                 # MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_NORESERVE
    mov r8, -1
    xor r9d, r9d
    mov eax, 9                       # mmap
    syscall
    pop rdx
    pop rsi
    pop rdi
    lea r11, [rip + handler + 65536]
    cmp rax, -4095
    jae other
    ret
other:
    mov rax, [r11 + 8]
    test rax, rax
    jz default
    push rax
    mov qword ptr [r11 + 8], 0
    call rax
    pop rax
    lea r11, [rip + handler + 65536]
    mov [r11 + 8], rax
    ret
default:
    lea rsi, [r11 + 32]
    xor edx, edx
    mov r10d, 8
    mov eax, 13                      # rt_sigaction
    syscall
    mov eax, 39                      # getpid
    syscall
    mov edi, eax
    mov esi, 7                       # SIGBUS
    mov eax, 62                      # kill
    syscall
    ret
""",
    bytes.fromhex("""
        4c8d1df9ff0000837e0802756e488b4610498b4b104d8d53404883e901725c493b027206493b4208
        72064983c218ebe949894210f049ff03575652498b7b1848f7df4821c7498b72084829feba010000
        0041ba3240000049c7c0ffffffff4531c9b8090000000f055a5e5f4c8d1d8eff0000483d01f0ffff
        7301c3498b43084885c074185049c7430800000000ffd0584c8d1d69ff000049894308c3498d7320
        31d241ba08000000b80d0000000f05b8270000000f0589c7be07000000b83e0000000f05c3
    """),
)

_AARCH64 = Handler(
    """\
handler:                             // (x0: signal, x1: siginfo, x2: context)
    adr x9, handler + 65536
    ldr w10, [x1, #8]                // si_code: BUS_ADRERR
    cmp w10, #2
    b.ne other
    ldr x10, [x1, #16]               // si_addr
    ldr x12, [x9, #16]
    add x11, x9, #64
next:
    cbz x12, other
    sub x12, x12, #1
    ldp x13, x14, [x11]
    cmp x10, x13
    b.lo skip
    cmp x10, x14
    b.lo found
skip:
    add x11, x11, #24
    b next
found:
    str x10, [x11, #16]
count:
    ldxr x13, [x9]
    add x13, x13, #1
    stlxr w15, x13, [x9]
    cbnz w15, count
    mov x15, x0
    mov x16, x1
    mov x17, x2
    ldr x13, [x9, #24]
    neg x13, x13
    and x0, x10, x13
    sub x1, x14, x0
    mov x2, #1                       // PROT_READ
    mov x3, #0x4032                  // MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_NORESERVE
    mov x4, #-1
    mov x5, #0
    mov x8, #222                     // mmap
    svc #0
    mov x10, x0
    mov x0, x15
    mov x1, x16
    mov x2, x17
    cmn x10, #4095
    b.hs other
    ret
other:
    ldr x10, [x9, #8]
    cbz x10, default
    stp x10, x30, [sp, #-16]!
    str xzr, [x9, #8]
    blr x10
    ldp x10, x30, [sp], #16
    adr x9, handler + 65536
    str x10, [x9, #8]
    ret
default:
    add x1, x9, #32
    mov x2, #0
    mov x3, #8
    mov x8, #134                     // rt_sigaction
    svc #0
    mov x8, #172                     // getpid
    svc #0
    mov x1, #7                       // SIGBUS
    mov x8, #129                     // kill
    svc #0
    ret
""",
    bytes.fromhex("""
        090008102a0840b95f090071c10400542a0840f92c0940f92b0101914c0400b48c0500d16d3940a9
        5f010deb630000545f010eeb630000546b610091f8ffff176a0900f92d7d5fc8ad0500912dfd0fc8
        afffff35ef0300aaf00301aaf10302aa2d0d40f9ed030dcb40010d8ac10100cb220080d2430688d2
        04008092050080d2c81b80d2010000d4ea0300aae0030faae10310aae20311aa5ffd3fb142000054
        c0035fd62a0540f90a0100b4ea7bbfa93f0500f940013fd6ea7bc1a829fa07102a0500f9c0035fd6
        21810091020080d2030180d2c81080d2010000d4881580d2010000d4e10080d2281080d2010000d4
        c0035fd6
    """),
)

HANDLERS = {"x86_64": _X86_64, "aarch64": _AARCH64}  # by machine, on Linux
