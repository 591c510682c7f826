// src/vramkit/driver/kernels.ptx as it is, and the final NUL up to which the driver reads.
    .section .rodata
    .globl vramkit_share_kernels
    .hidden vramkit_share_kernels
vramkit_share_kernels:
    .incbin VRAMKIT_KERNELS
    .byte 0
    .section .note.GNU-stack, "", %progbits
