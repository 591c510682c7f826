// The exported calls. Each jumps through a slot of its own: no argument is touched, neither in
// registers nor on the stack, and no frame is added, so that a backtrace shows the caller as usual.
//
// At first all slots lead to vramkit_gate_first_call, which saves whatever may hold an argument of
// a driver call (integers and pointers, float and double), lets vramkit_gate_connect fill the slots
// and goes on to the call itself. Wider vectors are not saved: no driver call takes one.
//
// slots.h has the other side.

    .section .data.vramkit_gate_slots, "aw", %progbits
    .p2align 3
    .globl vramkit_gate_slots
    .hidden vramkit_gate_slots
vramkit_gate_slots:
    .text

#if defined(__x86_64__)

    .macro vramkit_export name
    .p2align 4
    .globl \name
    .type \name, %function
\name:
    .cfi_startproc
    endbr64
    jmp *slot_of_\name(%rip)
    .cfi_endproc
    .size \name, . - \name
first_call_of_\name:
    .cfi_startproc
    endbr64
    leaq slot_of_\name(%rip), %r11
    jmp vramkit_gate_first_call
    .cfi_endproc
    .pushsection .data.vramkit_gate_slots
slot_of_\name:
    .quad first_call_of_\name
    .popsection
    .endm

    .p2align 4
    .type vramkit_gate_first_call, %function
vramkit_gate_first_call:
    .cfi_startproc
    pushq %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    andq $-16, %rsp
    subq $192, %rsp
    movaps %xmm0, (%rsp)
    movaps %xmm1, 16(%rsp)
    movaps %xmm2, 32(%rsp)
    movaps %xmm3, 48(%rsp)
    movaps %xmm4, 64(%rsp)
    movaps %xmm5, 80(%rsp)
    movaps %xmm6, 96(%rsp)
    movaps %xmm7, 112(%rsp)
    movq %rdi, 128(%rsp)
    movq %rsi, 136(%rsp)
    movq %rdx, 144(%rsp)
    movq %rcx, 152(%rsp)
    movq %r8, 160(%rsp)
    movq %r9, 168(%rsp)
    movq %rax, 176(%rsp)
    movq %r10, 184(%rsp)
    movq %r11, %rdi
    call vramkit_gate_connect
    movq %rax, %r11
    movaps (%rsp), %xmm0
    movaps 16(%rsp), %xmm1
    movaps 32(%rsp), %xmm2
    movaps 48(%rsp), %xmm3
    movaps 64(%rsp), %xmm4
    movaps 80(%rsp), %xmm5
    movaps 96(%rsp), %xmm6
    movaps 112(%rsp), %xmm7
    movq 128(%rsp), %rdi
    movq 136(%rsp), %rsi
    movq 144(%rsp), %rdx
    movq 152(%rsp), %rcx
    movq 160(%rsp), %r8
    movq 168(%rsp), %r9
    movq 176(%rsp), %rax
    movq 184(%rsp), %r10
    leave
    .cfi_def_cfa %rsp, 8
    jmp *%r11
    .cfi_endproc
    .size vramkit_gate_first_call, . - vramkit_gate_first_call

#elif defined(__aarch64__)

    .macro vramkit_export name
    .p2align 4
    .globl \name
    .type \name, %function
\name:
    .cfi_startproc
    hint #34  // bti c
    adrp x16, slot_of_\name
    add x16, x16, :lo12:slot_of_\name
    ldar x16, [x16]  // a hook then sees what was stored before the slot
    br x16
    .cfi_endproc
    .size \name, . - \name
first_call_of_\name:
    .cfi_startproc
    hint #34
    adrp x17, slot_of_\name
    add x17, x17, :lo12:slot_of_\name
    b vramkit_gate_first_call
    .cfi_endproc
    .pushsection .data.vramkit_gate_slots
slot_of_\name:
    .quad first_call_of_\name
    .popsection
    .endm

    .p2align 4
    .type vramkit_gate_first_call, %function
vramkit_gate_first_call:
    .cfi_startproc
    stp x29, x30, [sp, #-224]!
    .cfi_def_cfa_offset 224
    .cfi_offset x29, -224
    .cfi_offset x30, -216
    mov x29, sp
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    str x8, [sp, #80]
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    mov x0, x17
    bl vramkit_gate_connect
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x2, x3, [sp, #32]
    ldp x4, x5, [sp, #48]
    ldp x6, x7, [sp, #64]
    ldr x8, [sp, #80]
    ldp q0, q1, [sp, #96]
    ldp q2, q3, [sp, #128]
    ldp q4, q5, [sp, #160]
    ldp q6, q7, [sp, #192]
    ldp x29, x30, [sp], #224
    .cfi_def_cfa_offset 0
    .cfi_restore x29
    .cfi_restore x30
    br x16
    .cfi_endproc
    .size vramkit_gate_first_call, . - vramkit_gate_first_call

#else
#error "the gate has no trampolines for this processor"
#endif

#define VRAMKIT_EXPORT(name) vramkit_export name
#include "gate/exports.def"

    .section .note.GNU-stack, "", %progbits
