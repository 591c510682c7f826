"""What allocators cost a program that works on tables: `vramkit lab allocators`."""




