def measure_framework(*a):
    raise NotImplementedError
