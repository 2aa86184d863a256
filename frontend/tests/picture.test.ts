import { describe, expect, it } from 'vitest'

import { Frame, hit, meant, meantAt, meantBy, pieces } from '../src/picture/layout'
import { colourOfCell } from '../src/picture/cells'
import { axis, bars, cells, line, panel } from '../src/picture/made'
import { decades, inWords, keyOf, number, shadeOf, span, thinned, ticks } from '../src/picture/scale'
import type { Line } from '../src/wire'

describe('numbers are said as the report says them', () => {
  it('three digits that count', () => expect([0, 0.1234, 12.34, 1234567, NaN, 1234].map(number)).toEqual(['0', '0.123', '12.3', '1.23e+6', 'none', '1234']))
  it('round ticks', () => {
    expect(ticks(0, 1)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1])
    expect(ticks(3, 47)).toEqual([10, 20, 30, 40])
  })
  it('decades', () => {
    expect(decades(1, 2500)).toEqual([1, 10, 100, 1000])
    expect(decades(30, 250)).toEqual([50, 100, 200])
    expect(decades(0.52, 0.94)).toEqual([0.6, 0.7, 0.8, 0.9])
  })
  it('digits that tell apart', () => {
    expect(inWords([0, 0.5, 1])).toEqual(['0', '0.5', '1'])
    expect(inWords([2.395, 2.4, 2.405])).toEqual(['2.395', '2.400', '2.405'])
  })
  it('thinned names', () => {
    expect(thinned(axis({ names: [...'abcdefghij'] }), 4)).toEqual([0, 3, 6, 9])
    expect(thinned(axis({ names: [...'abcdefg'], marked: [0, 2, 4, 6] }), 2)).toEqual([0, 4])
  })
})

describe('a panel', () => {
  const curve = panel('Speed', [line('speed', [1, 2, 4]), line('null', [1, 1, 1], 'null', 'dashed')], { x: axis({ names: ['embed', 'L0', 'L1'] }) })
  it('has room for all of its values', () => {
    expect(span(curve, 'x')).toEqual([0, 2])
    const [low, high] = span(curve, 'y')
    expect(low).toBeLessThan(1)
    expect(high).toBeGreaterThan(4)
  })
  it('a value goes to the sheet and back', () => {
    const frame = new Frame(curve, 400, 236)
    const back = frame.at(frame.x(1), frame.y(2))
    expect(back.x).toBeCloseTo(1)
    expect(back.y).toBeCloseTo(2)
    expect(frame.y(4)).toBeLessThan(frame.y(1))
  })
  it('a line is broken where a value is missing', () => {
    const broken = { ...(line('a', [1, 2, 3, 4]) as Line), y: [1, null, 3, 4] }
    expect(pieces(new Frame(panel('', [broken]), 300, 200), broken).length).toBe(2)
  })
  it('says all values of a column under the pointer, and what the column means', () => {
    const frame = new Frame(curve, 400, 236)
    const found = hit(frame, frame.x(1) + 3, frame.y(3))!
    expect(found.text).toBe('L0\nspeed: 2\nnull: 1')
    expect(found.meant).toEqual({ layer: 0, step: 'L0.resid_post' })
  })
  it('a map counts its rows from the top and names head and layer', () => {
    const map = panel('', [cells([[0, 0.5], [-1, 1]], -1, 1)], { x: axis({ label: 'head', names: ['0', '1'] }), y: axis({ names: ['L0', 'L1'] }) })
    const frame = new Frame(map, 300, 200)
    expect(frame.y(0)).toBeLessThan(frame.y(1))
    const found = hit(frame, frame.x(1), frame.y(1))!
    expect(found.meant).toMatchObject({ layer: 1, head: 1 })
    expect(found.text).toContain('1')
    expect(meantAt(map, 0, 1)).toMatchObject({ layer: 1, head: 0 })
  })
  it('a line that answers is found within reach only', () => {
    const path: Line = { ...(line('3 ·sea', [0, 1]) as Line), tip: 'sea' }
    const frame = new Frame(panel('', [path]), 300, 200)
    expect(hit(frame, frame.x(0.5), frame.y(0.5) + 4)?.meant).toEqual({ token: 3 })
    expect(hit(frame, frame.x(0.5) + 60, frame.y(0.5) + 40)).toBeNull()
  })
  it('bars answer for themselves', () => {
    const both = bars('t', [{ name: 'a', value: 2 }, { name: 'b', value: -1 }], 'logits')
    const frame = new Frame(both, 300, both.height * 236)
    expect(hit(frame, frame.x(1), frame.y(1))?.text).toBe('a: 2.00')
    expect(hit(frame, frame.x(-0.5), frame.y(0))?.text).toBe('b: -1.00')
  })
  it('a key names lines that do not answer themselves', () => expect(keyOf(curve).map((one) => one.name)).toEqual(['speed', 'null']))
  it('shades lie between −1 and 1 around the centre', () => {
    const map = cells([], 0, 2, 1)
    expect([shadeOf(map, 2), shadeOf(map, 0), shadeOf(map, 1), shadeOf(map, 9), shadeOf(map, null)]).toEqual([1, -1, 0, 1, 0])
  })
  it('a cell without a number is grey, and one in the middle is paper', () => {
    const [map, paper] = [cells([], 0, 2, 1), [255, 255, 255] as [number, number, number]]
    expect(colourOfCell(map, 1, paper)).toEqual(paper)
    expect(colourOfCell(map, null, paper)).toEqual([226, 228, 233])
    expect(colourOfCell(map, NaN, paper)).toEqual([226, 228, 233])
  })
})

it('a path says which token it is under the pointer', () => {
  expect(meantBy({ ...(line('The', [0, 1]) as Line), tip: 'token 1 The: path 163' })).toEqual({ token: 1 })
})

it('names mean tokens, heads, steps and layers', () => {
  expect(meant('12 ·bank')).toEqual({ token: 12 })
  expect(meant('L3.H1')).toEqual({ layer: 3, head: 1 })
  expect(meant('L3 attention')).toEqual({ layer: 3, step: 'L3.resid_mid' })
  expect(meant('embed')).toEqual({ step: 'embed' })
  expect(meant('12')).toEqual({})
})
