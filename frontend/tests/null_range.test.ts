import { expect, it } from 'vitest'

import { nullRange } from '../src/heads/null_range'

it('the null of all heads is a range without missing values', () => {
  expect(nullRange(Float32Array.of(0.5, NaN, -0.25))).toEqual({ low: -0.25, high: 0.5 })
  expect(nullRange(Float32Array.of(NaN))).toBeNull()
})
