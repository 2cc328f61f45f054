"""Speed of a model beside what the machine allows and beside other runtimes."""
